"""No optimizer wrapper: a loop that sums gradients itself, and gathers metrics: by_hand.py OUT EPOCHS CHECKPOINT.

Batches do not divide evenly, so gradients are sums, divided by the size of the whole batch.
"""

from __future__ import annotations

import sys

import horovod.torch as hvd
import torch


def reduce_gradients(model: torch.nn.Module, count: int) -> None:
    """Each gradient becomes its sum over the ranks, divided by ``count``."""
    handles = []
    named = list(model.named_parameters())
    for name, param in named if hvd.rank() == 0 else reversed(named):  # names make it one order
        handles.append(hvd.allreduce_async_(param.grad, name=name, op=hvd.Sum, postscale_factor=1 / count))
    while not all(hvd.poll(handle) for handle in handles[:1]):
        pass
    for handle in handles:
        hvd.synchronize(handle)


def run(out: str, epochs: int, checkpoint: str) -> None:
    torch.manual_seed(4)
    x = torch.randn(53, 7, dtype=torch.float64)
    y = torch.sin(x.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.GELU(), torch.nn.Linear(9, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    epoch = 0
    try:
        model_state, optimizer_state, epoch = torch.load(checkpoint)
    except FileNotFoundError:
        pass
    else:
        model.load_state_dict(model_state)
        optimizer.load_state_dict(optimizer_state)
    while epoch < epochs:
        order = torch.randperm(53, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(10):  # 10, and 3 at the end
            mine = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            losses = (model(x[mine]) - y[mine]).square()
            losses.sum().backward()
            reduce_gradients(model, len(batch))
            optimizer.step()
            everyone = hvd.allgather(losses.detach().flatten(), name="losses")
            assert len(everyone) == len(batch)
            mean = hvd.allreduce(losses.detach().sum() / len(batch), op=hvd.Sum, name="loss")
            torch.testing.assert_close(everyone.mean(), mean)
        epoch += 1
        hvd.barrier()
        if hvd.rank() == 0:
            torch.save((model.state_dict(), optimizer.state_dict(), epoch), checkpoint)
    torch.save(model.state_dict(), f"{out}.{hvd.rank()}")


if __name__ == "__main__":
    hvd.init()
    run(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    hvd.shutdown()
