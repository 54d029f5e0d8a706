"""A program with an optimizer of its own: it takes what it needs from the modules within horovod.torch."""

import json
import subprocess
import sys

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import split_list
from horovod.torch.compression import Compression
from horovod.torch.functions import broadcast_parameters
from horovod.torch.mpi_ops import Average, allreduce_async_, rank, size, synchronize
from horovod.torch.optimizer import _DistributedOptimizer


class Averaging:
    """Averages gradients when they are there, and steps."""

    def __init__(self, optimizer, named):
        self.optimizer, self.named = optimizer, list(named)

    def step(self):
        handles = [
            (p, *Compression.fp16.compress(p.grad), name) for name, p in self.named if p.grad is not None
        ]
        running = [
            (p, ctx, allreduce_async_(small, name=f"mine.{name}", op=Average))
            for p, small, ctx, name in handles
        ]
        for p, ctx, handle in running:
            p.grad.copy_(Compression.fp16.decompress(synchronize(handle), ctx))
        self.optimizer.step()


hvd.init()
torch.manual_seed(rank())
model = torch.nn.Linear(4, 2)
broadcast_parameters(model.state_dict(), root_rank=0)
own = Averaging(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
try:
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(3, 4)).pow(2).sum().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
        with optimizer.skip_synchronize():
            optimizer.step()
    for p in model.parameters():
        p.grad = torch.ones_like(p) * (rank() + 1)
    own.step()
except HorovodInternalError:
    sys.exit(3)
child = [sys.executable, "-c", "import horovod; print(horovod.__version__)"]
found = {
    "rank": rank(),
    "wrapped": isinstance(optimizer, _DistributedOptimizer)
    and not isinstance(own.optimizer, _DistributedOptimizer),
    "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
    "norm": norm,
    "parts": split_list(list(range(size())), 2),
    "child": subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip(),
}
print(json.dumps(found))
