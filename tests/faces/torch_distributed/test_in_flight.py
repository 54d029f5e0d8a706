"""Several operations in flight on one tensor act in the order of their calls, also where tensors are copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faces.torch_distributed import staging_rank
from slipstream.base.errors import Aborted
from slipstream.faces.torch_distributed import devices

COUNTS = (16, 100_000)


def _all_reduce(x: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> Any:
    if devices.for_tensor(x) is None:
        return dist.all_reduce(x, op, group=group, async_op=True)
    options = dist.AllreduceCoalescedOptions()  # what is plain would not be staged
    options.reduceOp = op
    return (group or dist.group.WORLD).allreduce_coalesced([x], options)


def _wait(*works: Any) -> None:
    for work in works:
        work.wait()


def _is(tensor: torch.Tensor, value: float) -> None:
    assert tensor.eq(value).all(), (value, tensor.flatten()[:4])


def _layouts(count: int) -> list[torch.Tensor]:
    """Ones: plain, strided, and with the lazy bits."""
    return [
        torch.ones(count),
        torch.ones(count, 2)[:, 0],
        torch.ones(2, count // 2).t(),
        torch.ones(count, dtype=torch.complex64).mul(1j).imag,
    ]


def check_all_reduces() -> None:
    n = dist.get_world_size()
    for count in COUNTS:
        for i in range(4):
            x = _layouts(count)[i]
            part = x[: len(x) // 2]
            works = [_all_reduce(tensor) for tensor in (x, x, part, x)]
            _wait(*works)
            _is(part, n**4)
            _is(x[len(x) // 2 :], n**3)


def check_only_the_last_is_waited_for() -> None:
    n = dist.get_world_size()
    x = torch.ones(1000, 2)[:, 0]
    for _ in range(2):
        _all_reduce(x)  # the handle is dropped
    _wait(_all_reduce(x))
    _is(x, n**3)


def check_factors() -> None:
    n = dist.get_world_size()
    twice = dist._make_nccl_premul_sum(2.0)
    for count in COUNTS:
        x = torch.ones(count)
        works = [_all_reduce(x, op) for op in (twice, twice, dist.ReduceOp.SUM, twice)]
        _wait(*works)
        _is(x, 8 * n**4)


def check_lists() -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    for count in COUNTS:
        outs = [torch.zeros(count) for _ in range(n)]
        x = torch.ones(count)
        works = [
            _all_reduce(x),
            dist.all_gather(outs, x, async_op=True),
            _all_reduce(outs[0]),
            dist.broadcast(outs[1], 0, async_op=True),
            dist.all_gather(outs, outs[0], async_op=True),
            _all_reduce(outs[1]),
        ]
        _wait(*works)
        _is(outs[0], n**2)
        _is(outs[1], n**3)
        inputs = [torch.ones(count) for _ in range(n)]
        out = torch.zeros(count)
        works = [
            _all_reduce(inputs[-1]),
            dist.reduce_scatter(out, inputs, async_op=True),
            dist.reduce(out, 0, async_op=True),
        ]
        _wait(*works)
        mine = n * n if rank == n - 1 else n
        _is(out, n * (n - 1) + n * n if rank == 0 else mine)


def check_reads_before_writes() -> None:
    """What an operation still reads is not overwritten by the copy at the end of a later one."""
    n, rank = dist.get_world_size(), dist.get_rank()
    for count in COUNTS:
        memory = torch.full((count, 2), float(rank + 1))
        got = memory if rank == 0 else torch.zeros(count, 2)
        works = [dist.broadcast(got, 0, async_op=True)]
        works.append(_all_reduce(memory[:, 0]))
        _wait(*works)
        if rank:
            _is(got, 1)
        _is(memory[:, 0], n * (n + 1) / 2)


def check_messages() -> None:
    rank = dist.get_rank()
    for count in COUNTS:
        x = torch.full((count, 2), float(rank))[:, 0]
        if rank == 0:
            for value in range(3):
                dist.send(torch.full((count,), value + 5.0), 1)
            dist.recv(x, 1)
            _is(x, 7)
        elif rank == 1:
            _wait(*[dist.irecv(x, 0) for _ in range(3)])
            dist.send(x, 0)


def check_columns_of_groups() -> None:
    """Columns have no memory in common: operations of several groups on them are in flight together."""
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)]
    for _ in range(3):
        x = torch.ones(1000, 2)
        works = [_all_reduce(x[:, i], group=groups[i]) for i in range(2)]
        _wait(*works)
        _is(x, dist.get_world_size())
    for group in groups:
        dist.destroy_process_group(group)


CHECKS: list[Callable[[], None]] = [
    check_all_reduces,
    check_only_the_last_is_waited_for,
    check_factors,
    check_lists,
    check_reads_before_writes,
    check_messages,
    check_columns_of_groups,
]


@pytest.mark.parametrize("check", CHECKS)
def test_operations_in_flight_on_one_tensor(c10d: Any, check: Callable[[], None]) -> None:
    c10d(check, size=2)


@pytest.mark.parametrize("check", CHECKS)
def test_operations_in_flight_on_one_staged_tensor(c10d: Any, check: Callable[[], None]) -> None:
    c10d(staging_rank.check_staged, __file__, check.__name__, size=2)


def check_groups_are_refused(first_strided: bool) -> None:
    """Rank 0 is alone with its first operation when it calls the second."""
    rank = dist.get_rank()
    other = dist.new_group([0, 1])
    memory = torch.ones(1000, 2)
    first, second = (memory[:, 0], memory) if first_strided else (memory, memory[:, 0])
    work = _all_reduce(first) if rank == 0 else None
    with pytest.raises(Aborted, match=r"rank 0.* called all_reduce.* of another group"):
        _all_reduce(second, group=other).wait()
    if work is not None:
        with pytest.raises(Aborted):
            work.wait()


@pytest.mark.parametrize("first_strided", [True, False])
def test_operations_of_several_groups_in_flight_on_one_tensor_are_refused(
    c10d: Any, first_strided: bool
) -> None:
    c10d(check_groups_are_refused, first_strided, size=2, fresh=True)


def test_staged_operations_of_several_groups_in_flight_on_one_tensor_are_refused(c10d: Any) -> None:
    c10d(staging_rank.check_staged, __file__, "check_groups_are_refused", True, size=2, fresh=True)
