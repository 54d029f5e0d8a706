"""How the methods of a group start operations, without a job: which group does it, in which thread, in which batch."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d

from slipstream.faces.torch_distributed.backend import is_default
from slipstream.faces.torch_distributed.methods import served
from slipstream.faces.torch_distributed.operations import elements_per_rank
from slipstream.faces.torch_distributed.starting import OperationStarter
from slipstream.faces.torch_distributed.works import FinishedWork

c10d: Any = torch._C._distributed_c10d


def starter(size: int) -> OperationStarter:
    members: Any = SimpleNamespace(size=size)
    return OperationStarter(members, members, 30.0)


def options(asynchronous: bool, seconds: float = 0) -> Any:
    return SimpleNamespace(asyncOp=asynchronous, timeout=timedelta(seconds=seconds))


# ---- the thread, the limit, the batch


@pytest.mark.parametrize(
    ("size", "given", "synchronous"),
    [
        (1, None, True),
        (1, options(True), True),
        (2, None, False),
        (2, options(True), False),
        (2, options(False), True),
    ],
    ids=range(5),
)
def test_an_operation_runs_in_the_callers_thread_if_nothing_speaks_against_it(
    size: int, given: Any, synchronous: bool
) -> None:
    start = starter(size)
    assert start.is_synchronous(given) is synchronous
    start.begin_batch()
    assert not start.is_synchronous(given)
    with start.outside_batch():
        assert start.is_synchronous(given) is synchronous
    assert not start.is_synchronous(given)
    start.end_batch()
    assert start.is_synchronous(given) is synchronous


def test_an_operations_own_limit_counts() -> None:
    start = starter(2)
    assert start.limit_of(None) == 30
    assert start.limit_of(options(True)) == 30
    assert start.limit_of(c10d.AllreduceOptions()) == 30
    assert start.limit_of(options(True, 5)) == 5


@pytest.mark.parametrize(("replaced", "counts"), [("nccl", False), ("gloo", True)])
def test_nccls_default_limit_counts_unless_slipstream_stands_in_for_it(
    monkeypatch: pytest.MonkeyPatch, replaced: str, counts: bool
) -> None:
    monkeypatch.setenv("SLIPSTREAM_REPLACE", replaced)
    monkeypatch.setattr(distributed_c10d, "default_pg_nccl_timeout", timedelta(minutes=10), raising=False)
    assert is_default(timedelta(minutes=10)) is not counts
    assert is_default(distributed_c10d.default_pg_timeout)
    assert not is_default(timedelta(minutes=9))


def test_a_batch_is_one_work() -> None:
    start = starter(2)
    before, inside = (FinishedWork([torch.zeros(n)]) for n in (1, 2))
    start.started(before)
    start.begin_batch()
    start.started(inside)
    with start.outside_batch():
        start.started(before)
    assert [len(tensor) for tensor in start.end_batch().result()] == [2]
    assert start.end_batch().result() == []


# ---- another back end's group


class Other:
    """A group of another back end, which has other names for its parameters."""

    def gather(self, out: Any, into: Any, how: Any = "default") -> Any:
        return "other", out, into, how

    def gather_base(self, out: Any, into: Any, how: Any = "default") -> Any:
        return "other's base", out, into, how


class Ours:
    def __init__(self, **others: Any) -> None:
        self.others = others

    @served(told_by=1)
    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return "ours", outputs, inputs, opts

    @served("gather_base", told_by=1)
    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return "ours, single", output, input, opts


def test_another_back_end_serves_its_devices_alone() -> None:
    here, there = torch.zeros(1), torch.zeros(1, device="meta")
    both = Ours(meta=Other())
    assert Ours().gather([], [there]) == ("ours", [], [there], None)
    assert both.gather([], [here], 1) == ("ours", [], [here], 1)
    assert both.gather([], [there], 1) == ("other", [], [there], 1)
    assert both.gather([], [there], opts=1) == ("other", [], [there], 1)
    assert both.gather([], [there], None) == ("other", [], [there], "default")
    assert both.gather_single(0, there) == ("other's base", 0, there, "default")
    assert both.gather_single(0, here) == ("ours, single", 0, here, None)


# ---- splits


def test_rows_are_cut_equally_or_as_the_splits_say() -> None:
    rows = torch.zeros(6, 5)
    assert elements_per_rank(rows, [], 3) == [10, 10, 10]
    assert elements_per_rank(rows, [0, 4, 2], 3) == [0, 20, 10]
    assert elements_per_rank(torch.zeros(()), [], 1) == [1]
    assert elements_per_rank(torch.zeros(0, 5), [], 3) == [0, 0, 0]
    with pytest.raises(ValueError, match="does not divide equally across group size: 6 rows, 4 ranks"):
        elements_per_rank(rows, [], 4)
    for splits in ([3, 3], [7, -1, 0], [1, 2, 4]):
        with pytest.raises(ValueError, match="do not match total dim 0 size 6 of 3 ranks"):
            elements_per_rank(rows, splits, 3)
