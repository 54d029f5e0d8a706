"""Rank 1 leaves the job; rank 0 waits for it in an operation, and in a step. Prints what rank 0's calls raise."""

from collections.abc import Callable
from typing import Any

import torch

import slipstream.torch as hvd


def attempt(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Prints what the call raises."""
    try:
        call(*args, **kwargs)
    except hvd.HorovodInternalError as error:
        print(f"error: {error}")


def step() -> None:
    """A step of training."""
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


hvd.init()
model = torch.nn.Linear(3, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
if hvd.rank() == 1:
    hvd.shutdown()
else:
    handle = hvd.allreduce_async(torch.ones(1), name="not synchronised")
    attempt(hvd.allreduce, torch.ones(1), name="loss")
    attempt(step)
    hvd.shutdown()
    attempt(hvd.synchronize, handle)
