"""One rank of a job with a reducer that trains by optimizers of the Horovod API.

optimizers_rank.py two | calls | again | join

From the third step on rank 1 has no gradient of the first optimizer: its bucket travels at the end of the step there,
and in backward on the others. All are large enough for the reducer, and of one shape.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import torch

import slipstream
import slipstream.torch as hvd
from slipstream.comm.membership import job

COUNT, STEPS = 1 << 16, 5


def sgd(parameter: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=hvd.Sum)


def lacks(rank: int, step: int) -> bool:
    return rank == 1 and step > 1


def train(optimizers: list[Any], params: list[Any], calls: bool = False) -> None:
    ends = [0.0, 0.0]
    for step in range(STEPS):
        used = [i for i in range(len(params)) if i or not lacks(hvd.rank(), step)][
            ::-1
        ]  # the last one comes first
        for optimizer in optimizers:
            optimizer.zero_grad()
        if used:
            torch.stack([(params[i] * 100.0**i).sum() for i in used]).sum().backward()
        if calls:
            assert (hvd.allreduce(torch.full((COUNT,), 10.0), op=hvd.Sum) == 10 * hvd.size()).all(), step
            assert (slipstream.all_reduce(np.full(COUNT, 10.0, np.float32)) == 10 * hvd.size()).all(), step
        for optimizer in optimizers:
            optimizer.step()
        ends[0] -= hvd.size() - sum(lacks(rank, step) for rank in range(hvd.size()))
        ends[1] -= 100 * hvd.size()
        for param, end in zip(params, ends, strict=False):
            assert (param == end).all(), (step, param[0].item(), end)


def fresh(count: int) -> list[Any]:
    return [torch.nn.Parameter(torch.zeros(COUNT)) for _ in range(count)]


def served(optimizer: Any, parameter: Any) -> bool:
    """Whether the reducer serves its steps. How much of them it takes depends on what the machine is busy with."""
    for _ in range(4):
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()
    return job.current().reducers.for_choices(optimizer._exchange._line.group()) is not None


def two() -> None:
    params = fresh(2)
    optimizers = [sgd(param) for param in params]
    train(optimizers, params)
    assert [served(*one) for one in zip(optimizers, params, strict=True)] == [True, False]


def calls() -> None:
    params = fresh(1)
    optimizer = sgd(params[0])
    train([optimizer], params, calls=True)
    assert served(optimizer, params[0])


def again() -> None:
    """The reducer goes to the next optimizer when no rank has the one before any more."""
    params = fresh(2)
    first = sgd(params[0])
    assert served(first, params[0])
    second = sgd(params[1])
    assert not served(second, params[1])
    if hvd.rank() != 1:
        del first
        gc.collect()
    other = fresh(1)[0]
    third = sgd(other)
    assert not served(third, other)  # rank 1 has the first one still
    first = None
    gc.collect()
    del third
    gc.collect()
    last = fresh(1)[0]
    fourth = sgd(last)
    assert served(fourth, last)


def join() -> None:
    """A rank that lacks the optimizer takes part with the reducer, and does not keep that from the next one."""
    for makes_it in (True, False):
        param, other = fresh(2)
        first = None if hvd.rank() == 1 else sgd(param)
        if first is not None:
            assert served(first, param)
            assert (param == -4 * (hvd.size() - 1)).all()
        assert hvd.join() != 1
        if makes_it:
            before = param.detach().clone()
            first = first or sgd(param)
            assert served(first, param)
            assert (param == before - 4 * hvd.size()).all()
        first = None
        gc.collect()
        second = sgd(other)
        assert served(second, other)
        assert (other == -4 * hvd.size()).all()
        second = None
        gc.collect()


torch.set_num_threads(1)
hvd.init()
{"two": two, "calls": calls, "again": again, "join": join}[sys.argv[1]]()
hvd.shutdown()
