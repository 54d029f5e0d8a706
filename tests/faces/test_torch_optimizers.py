"""Several optimizers, whose gradients come in one backward pass in an order that differs between the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import slipstream  # noqa: E402
import slipstream.torch as hvd  # noqa: E402

STEPS = 6
Used = Callable[
    [int, int], list[int]
]  # of a rank and a step: the optimizers that get gradients, the first one last


def parameters(count: int) -> list[Any]:
    """Of one shape: nothing but their order tells the buckets of one optimizer from those of another."""
    return [torch.nn.Parameter(torch.zeros(4, dtype=torch.float64)) for _ in range(count)]


def sgd(parameter: Any, **options: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=hvd.Sum, **options)


def backward(params: list[Any], used: list[int]) -> None:
    """Gradients come in the opposite order of ``used``."""
    if used:
        torch.stack([(params[i] * 100.0**i).sum() for i in used]).sum().backward()


def train(
    used: Used, optimizers: list[Any], params: list[Any], between: Callable[[], None] = lambda: None
) -> None:
    """Each gradient of parameter i is 100 to the power of i: a parameter ends where these lead it, and nothing else."""
    ends = [0.0] * len(params)
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        mine = used(hvd.rank(), step)
        backward(params, mine)
        between()
        for optimizer in optimizers:
            optimizer.step()
        for rank in range(hvd.size()):
            for i in used(rank, step):
                ends[i] -= 100.0**i
        assert [param.tolist() for param in params] == [[end] * 4 for end in ends], step


def turned(rank: int, step: int) -> list[int]:
    return [1, 0] if rank == 1 and step > 1 else [0, 1]


def lacking(rank: int, step: int) -> list[int]:
    """Rank 1 has no gradient of the first optimizer in some steps: that bucket waits for the step there."""
    return [1] if rank == 1 and step > 1 else [1, 0]


def check_turned() -> None:
    for options in ({}, {"compression": hvd.Compression.fp16}):
        params = parameters(2)
        train(turned, [sgd(param, **options) for param in params], params)


def check_lacking() -> None:
    params = parameters(2)
    train(lacking, [sgd(param) for param in params], params)


def check_same_names() -> None:
    params = parameters(2)
    train(turned, [sgd(param, named_parameters=[("weight", param)]) for param in params], params)


def check_first_step() -> None:
    """An optimizer that learns its order while buckets of another one travel."""
    params = parameters(2)
    first = sgd(params[0])
    train(lambda rank, step: [0], [first], params[:1])
    params[0].data.zero_()
    train(lacking, [first, sgd(params[1])], params)


def check_called_between() -> None:
    """What the program calls on the same ranks between backward and step."""
    total = np.full(4, hvd.size(), np.float64)

    def between() -> None:
        assert (slipstream.all_reduce(np.ones(4)) == total).all()

    params = parameters(1)
    train(lambda rank, step: [] if rank == 1 and step > 1 else [0], [sgd(params[0])], params, between)


def check_join() -> None:
    """A rank that has joined takes part in the steps of both."""
    params = parameters(2)
    optimizers = [sgd(param) for param in params]
    train(turned, optimizers, params)
    for _ in range(0 if hvd.rank() == 1 else 3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(params, [1, 0])
        for optimizer in optimizers:
            optimizer.step()
    hvd.join()
    if hvd.rank() != 1:
        ends = [-(STEPS * hvd.size() + 3 * (hvd.size() - 1)) * 100.0**i for i in (0, 1)]
        assert [param.tolist() for param in params] == [[end] * 4 for end in ends]


CHECKS = [check_turned, check_lacking, check_same_names, check_first_step, check_called_between, check_join]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_two_ranks(two: Any, check: Any) -> None:
    two(check)


@pytest.mark.parametrize(
    "check", [check_turned, check_join], ids=lambda check: check.__name__.removeprefix("check_")
)
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)
