"""A rank of pipeline.py: steps of a model whose compute is a delay, with gradients exchanged in three ways.

    python overlap_rank.py MODEL SECONDS STEPS

Rank 0 prints JSON: for each contender the seconds of a step, over STEPS steps amid others: what the step before left
under way is counted, and what the last one leaves is not. ``plain`` exchanges nothing, ``overlap`` is
`DistributedOptimizer(overlap_forward=model)`, ``waiting`` the same without it, ``gloo`` is DDP. Ends with code 1 if the
parameters differ at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slipstream.torch as hvd
from slipstream.bench.train.workloads import find_shapes

_FORWARD = 1 / 3  # of the compute time


class _Wait(torch.autograd.Function):
    """Sleeps in place of computing, in both directions; gradients are the rank's number + 1."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float, *params: torch.Tensor) -> torch.Tensor:
        ctx.seconds, ctx.shapes = seconds, [param.shape for param in params]
        time.sleep(seconds * _FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        time.sleep(ctx.seconds * (1 - _FORWARD))
        return grad, None, *(torch.full(shape, hvd.rank() + 1.0) for shape in ctx.shapes)


class _Layer(nn.Module):
    def __init__(self, seconds: float, shapes: list[torch.Size]) -> None:
        super().__init__()
        self.seconds = seconds
        self.params = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Wait.apply(x, self.seconds, *self.params)
        return result


def make(model: str, seconds: float) -> nn.Sequential:
    """The layers of ``model``, in their order and with their parameters, which take ``seconds`` in all."""
    shapes = find_shapes(model)
    return nn.Sequential(
        *(
            _Layer(layer.share * seconds, [shapes.parameters[number] for number in layer.parameters])
            for layer in shapes.layers
        )
    )


def train(model: nn.Module, step: Callable[[], Any], steps: int) -> None:
    """Runs so many steps."""
    for _ in range(steps):
        model.zero_grad()
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        step()


def measure(name: str, kind: str, seconds: float, steps: int) -> tuple[float, nn.Module]:
    """Seconds of a step of contender ``name``, and its model."""
    model = make(kind, seconds)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
    runs, end = model, lambda: None
    if name == "gloo":
        runs = DistributedDataParallel(model, bucket_cap_mb=4)
    elif name != "plain":
        overlap = {"overlap_forward": model} if name == "overlap" else {}
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **overlap)
        end = optimizer.settle
    train(runs, optimizer.step, 3)
    start = time.perf_counter()
    train(runs, optimizer.step, steps)
    seconds = (time.perf_counter() - start) / steps
    end()
    hvd.barrier()
    return seconds, model


def main() -> int:
    """Returns the exit code."""
    kind, seconds, steps = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo", rank=hvd.rank(), world_size=hvd.size())
    found = {name: measure(name, kind, seconds, steps) for name in ("plain", "overlap", "waiting", "gloo")}
    expected = -0.5 * (hvd.size() + 1) / 2 * (steps + 3)
    wrong = sum(
        not torch.allclose(param, torch.tensor(expected))
        for name, (_, model) in found.items()
        if name != "plain"
        for param in model.parameters()
    )
    if hvd.rank() == 0:
        print(json.dumps({name: step for name, (step, _) in found.items()} | {"wrong": wrong}))
    dist.destroy_process_group()
    hvd.shutdown()
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
