"""A step of three backward passes, and gradients divided before the sum: accumulation.py OUT EPOCHS CHECKPOINT."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

GLOBAL_BATCH, PASSES = 12, 3


class Net(torch.nn.Module):
    """Two branches, of which one is used in some passes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.always = torch.nn.Linear(5, 4)
        self.sometimes = torch.nn.Linear(5, 4)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        hidden = self.always(x)
        if both:
            hidden = hidden + self.sometimes(x)
        return self.head(torch.tanh(hidden))


class Run:
    """Training, from the checkpoint on if there is one."""

    def __init__(self, checkpoint: Path) -> None:
        torch.manual_seed(hvd.rank())  # the ranks differ before the broadcast
        self.checkpoint = checkpoint
        self.net = Net().double()
        with torch.no_grad():
            for param in self.net.parameters():
                param.copy_(torch.linspace(-0.5, 0.5, param.numel()).view_as(param) * (hvd.rank() + 1))
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.5, nesterov=True),
            named_parameters=self.net.named_parameters(),
            backward_passes_per_step=PASSES,
            gradient_predivide_factor=2.0,
        )
        self.epoch = 0
        if hvd.rank() == 0 and checkpoint.exists():
            self.epoch, net, optimizer = pickle.loads(checkpoint.read_bytes())
            self.net.load_state_dict(net)
            self.optimizer.load_state_dict(optimizer)
        self.epoch = int(hvd.broadcast(torch.tensor(self.epoch), 0, name="epoch"))
        hvd.broadcast_parameters(self.net.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(72, 5, generator=generator, dtype=torch.float64)
        data = TensorDataset(x, x[:, :3].argmax(1))
        self.sampler = DistributedSampler(data, hvd.size(), hvd.rank())
        self.loader = DataLoader(data, GLOBAL_BATCH // hvd.size(), sampler=self.sampler)

    def train(self, epochs: int) -> None:
        """To the end of epoch number ``epochs``."""
        begin = self.epoch
        for self.epoch in range(begin, epochs):
            self.sampler.set_epoch(self.epoch)
            for number, (x, y) in enumerate(self.loader):
                logits = self.net(x, both=number % PASSES != 1)
                (torch.nn.functional.cross_entropy(logits, y) / PASSES).backward()
                if (number + 1) % PASSES == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            if hvd.rank() == 0:
                state = self.epoch + 1, self.net.state_dict(), self.optimizer.state_dict()
                self.checkpoint.write_bytes(pickle.dumps(state))


if __name__ == "__main__":
    hvd.init()
    run = Run(Path(sys.argv[3]))
    run.train(int(sys.argv[2]))
    torch.save(run.net.state_dict(), f"{sys.argv[1]}.{hvd.rank()}")
    hvd.shutdown()
