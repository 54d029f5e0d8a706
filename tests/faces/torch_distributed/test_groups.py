"""Process groups: made, split, mixed with other back ends, timed out, aborted, left and made again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist


def _total(group: Any = None) -> float:
    """The sum of the global ranks over the members, by an all-reduce."""
    tensor = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(tensor, group=group)
    assert (tensor == tensor[0]).all()
    return tensor[0].item()


def check_subgroups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group([size - 1, 0])
    if rank in (0, size - 1):
        assert _total(group) == size - 1
        assert dist.get_backend(group) == "slipstream"
    if rank < 2:  # only the members take part in this one
        assert _total(dist.new_group([0, 1], use_local_synchronization=True)) == 1
    own, _ = dist.new_subgroups(2)
    assert _total(own) == rank // 2 * 4 + 1
    unsorted = dist.new_group([1, 0], sort_ranks=False)
    if rank < 2:
        assert dist.get_rank(unsorted) == 1 - rank
        words = ["", ""]
        dist.all_gather_object(words, f"rank {rank}", group=unsorted)
        assert words == ["rank 1", "rank 0"]
    halves = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    assert halves is not None
    assert _total(halves) == rank // 2 * 4 + 1
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "along"))
    assert _total(mesh["along"].get_group()) == rank // 2 * 4 + 1
    assert _total(mesh["across"].get_group()) == rank % 2 * 2 + 2
    for _ in range(3):  # groups come and go
        group = dist.new_group([0, 1])
        if rank < 2:
            assert _total(group) == 1
        dist.destroy_process_group(group)
    assert _total() == 6


def test_groups_of_some_ranks(c10d: Any) -> None:
    c10d(check_subgroups, size=4, fresh=True)


def check_beside_gloo() -> None:
    rank = dist.get_rank()
    ours = dist.new_group(backend="slipstream")
    assert _total(ours) == 3
    pair = dist.new_group([0, 2], backend="slipstream")
    if rank != 1:
        assert _total(pair) == 2
    assert _total() == 3
    assert dist.get_backend(ours) == "slipstream"
    dist.destroy_process_group(ours)
    assert _total() == 3


def test_a_group_of_ours_under_a_default_group_of_gloo(c10d: Any) -> None:
    c10d(check_beside_gloo, size=3, backend="gloo", fresh=True)


def check_routes(expected: str) -> None:
    assert dist.get_backend_config() == expected
    assert _total() == 1
    group: Any = dist.group.WORLD
    cpu = [device for device, name in group.others.items() if name is not None]
    assert cpu == [expected.split(",")[1].split(":")[0] if expected.startswith("cpu:slip") else "cpu"]
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    dist.barrier()
    one = torch.zeros(2)
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), 1)
    else:
        dist.recv(one, 0)
        assert one.sum() == 2
    gathered = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(gathered, torch.full((2,), float(dist.get_rank())))
    assert [t[0].item() for t in gathered] == [0, 1]


@pytest.mark.parametrize("backend", ["cpu:slipstream,cuda:gloo", "cpu:gloo,cuda:slipstream"])
def test_a_group_of_two_back_ends(c10d: Any, backend: str) -> None:
    c10d(check_routes, backend, backend=backend, fresh=True)


# ---- limits of time


_LIMIT = timedelta(seconds=4)  # also for the group's first operation, of all ranks
_LONELY: dict[str, Callable[[Any], Any]] = {
    "group": lambda group: dist.all_reduce(torch.ones(4), group=group),
    "barrier": lambda _: dist.barrier(timeout=_LIMIT),  # type: ignore[call-arg]
    "receive": lambda group: dist.recv(torch.ones(4), 1, group=group),
}


def check_time_limit(what: str) -> None:
    group = dist.new_group(timeout=_LIMIT)
    _total(group)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:  # busy with something else
        store.wait(["over"])
        return
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=" Timed out ") as caught:
        _LONELY[what](group)
    assert time.monotonic() - started < 30
    store.set("over", "")
    assert "rank 1" in str(caught.value)
    assert "(timeout= of init_process_group, new_group or the call sets the limit)" in str(caught.value)


def check_the_limit_of_the_job(limited: bool) -> None:
    if limited:
        group = dist.group.WORLD
    else:
        group = dist.new_group(timeout=timedelta(seconds=60))  # a limit of its own wins
    _total(group)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["over"])
        if not limited:
            _total(group)
        return
    if limited:
        limit = "(SLIPSTREAM_TIMEOUT, or `slipstream run --timeout`, sets the limit)"
        with pytest.raises(RuntimeError, match=r"^rank 0 has waited .*" + re.escape(limit)):
            _total(group)
        store.set("over", "")
        return
    work = dist.all_reduce(torch.zeros(3), group=group, async_op=True)
    with pytest.raises(RuntimeError, match="goes on"):
        work.wait(timedelta(seconds=4))
    store.set("over", "")
    work.wait()


@pytest.mark.parametrize("limited", [True, False])
def test_the_limit_of_the_job_counts_where_the_program_gives_none(c10d: Any, limited: bool) -> None:
    none = dist.distributed_c10d.default_pg_timeout.total_seconds()
    c10d(check_the_limit_of_the_job, limited, timeout=none, environment={"SLIPSTREAM_TIMEOUT": "3"})


@pytest.mark.parametrize("what", ["group", "barrier", "receive"])
def test_an_operation_that_others_do_not_join_times_out(c10d: Any, what: str) -> None:
    c10d(check_time_limit, what, fresh=True)


def check_wait_limit() -> None:
    rank = dist.get_rank()
    tensor = torch.ones(4)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(RuntimeError, match=" Timed out "):
            work.wait(timedelta(milliseconds=50))
        assert not work.is_completed()
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        assert work.wait()  # the operation went on
    else:
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        dist.all_reduce(tensor)
    assert tensor.sum() == 8


def test_a_limit_on_waiting_leaves_the_operation_alone(c10d: Any) -> None:
    c10d(check_wait_limit)


def check_monitored_barrier() -> None:
    rank = dist.get_rank()
    dist.monitored_barrier()
    if rank != 1:
        with pytest.raises(RuntimeError, match=r"(Ranks? 1 |rank 0)"):
            dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=True)
    dist.barrier()  # the group is as good as before
    assert _total() == 3


def test_monitored_barrier_names_who_did_not_come(c10d: Any) -> None:
    c10d(check_monitored_barrier, size=3, fresh=True)


# ---- ends


def check_abort() -> None:
    group: Any = dist.group.WORLD
    _total()
    dist.monitored_barrier()  # the operation is over on all ranks
    if dist.get_rank() == 0:
        group.abort()
    with pytest.raises(RuntimeError, match="rank 0 aborted"):
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_reduce(torch.ones(2))


def test_abort_reaches_all_ranks(c10d: Any) -> None:
    c10d(check_abort, fresh=True)


def check_again(folder: str) -> None:
    """Leaves and joins again through the same store, with an operation right before each end."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(3):
        assert _total() == 3
        dist.destroy_process_group()
        dist.init_process_group(
            "slipstream", init_method=f"file://{folder}/again", rank=rank, world_size=size
        )


def test_a_process_can_leave_and_come_again(c10d: Any, tmp_path: Any) -> None:
    c10d(check_again, str(tmp_path), size=3, fresh=True)


def check_mismatch() -> None:
    count = 10 + dist.get_rank()
    with pytest.raises(RuntimeError, match=r"differs between ranks.*10 elements.*|.*11 elements.*"):
        dist.all_reduce(torch.ones(count))


def test_ranks_that_disagree_all_learn_it(c10d: Any) -> None:
    c10d(check_mismatch, fresh=True)
