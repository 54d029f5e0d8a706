"""What PyTorch's dispatcher shows to its modes and to subclasses of tensors: our operations as those of c10d's own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

ops = torch.ops.c10d


class Seen(TorchDispatchMode):
    """Counts the operators it sees, and sees to it that they run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.names.append(func._schema.name.removeprefix("c10d::"))
        return func(*args, **(kwargs or {}))


def every_operation() -> None:
    """Each operation once, checked: on values of rank + 1."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, size + 1))

    def mine(*shape: int) -> Any:
        return torch.full(shape or (4,), rank + 1.0)

    def check(found: Any, *values: float) -> None:
        assert torch.equal(
            found, torch.tensor([v for v in values for _ in range(found.numel() // len(values))])
        )

    ranks = [r + 1.0 for r in range(size)]
    x = mine()
    dist.all_reduce(x)
    check(x, total)
    x = mine()
    dist.all_reduce_coalesced([x, mine()])
    check(x, total)
    x = mine()
    dist.reduce(x, 0)
    if rank == 0:
        check(x, total)
    x = mine()
    dist.broadcast(x, 1)
    check(x, 2)
    parts = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(parts, mine())
    check(torch.cat(parts), *ranks)
    whole = torch.zeros(4 * size)
    dist.all_gather_into_tensor(whole, mine())
    check(whole, *ranks)
    dist.reduce_scatter(x, [mine() for _ in range(size)])
    check(x, total)
    dist.reduce_scatter_tensor(x, mine(4 * size))
    check(x, total)
    dist.gather(mine(), parts if rank == 0 else None, 0)
    dist.scatter(x, [torch.full((4,), r + 1.0) for r in range(size)] if rank == 0 else None, 0)
    check(x, rank + 1)
    dist.all_to_all(parts, [mine() for _ in range(size)])
    check(torch.cat(parts), *ranks)
    dist.all_to_all_single(whole, mine(4 * size))
    check(whole, *ranks)
    if rank == 0:
        dist.send(mine(), 1)
        dist.send(mine(), 1)
    elif rank == 1:
        dist.recv(x, 0)
        check(x, 1)
        dist.recv(x)
        check(x, 1)


ONCE = [
    "allreduce_",
    "allreduce_coalesced_",
    "reduce_",
    "broadcast_",
    "allgather_",
    "_allgather_base_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "gather_",
    "scatter_",
    "alltoall_",
    "alltoall_base_",
]
COUNTED = ["allreduce_", "broadcast_", "_allgather_base_", "_reduce_scatter_base_", "scatter_", "alltoall_"]
BETWEEN = {0: ["send", "send"], 1: ["recv_", "recv_any_source_"]}


def check_modes() -> None:
    with Seen() as outer, Seen() as inner:
        every_operation()
    assert outer.names == inner.names == ONCE + BETWEEN.get(dist.get_rank(), [])
    with CommDebugMode() as counts:
        every_operation()
        work = dist.all_reduce(torch.ones(3), async_op=True)
        work.wait(timedelta(seconds=60))
    found = counts.get_comm_counts()
    assert {name: found[getattr(ops, name)] for name in COUNTED} == {
        **dict.fromkeys(COUNTED, 1),
        "allreduce_": 2,
    }


@pytest.mark.parametrize("size", [2, 3])
def test_modes_see_each_operation_once(c10d: Any, size: int) -> None:
    c10d(check_modes, size=size)


def check_two_tensors() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, size + 1))

    def mine(n: int = 3) -> Any:
        return TwoTensor(torch.full((n,), rank + 1.0), torch.full((n,), 10.0 * (rank + 1)))

    def check(found: Any, value: float) -> None:
        assert torch.equal(found.a, torch.full((3,), value))
        assert torch.equal(found.b, torch.full((3,), 10 * value))

    x = mine()
    dist.all_reduce(x)
    check(x, total)
    x = mine()
    dist.broadcast(x, 1)
    check(x, 2)
    parts = [mine() for _ in range(size)]
    dist.all_gather(parts, mine())
    for r, part in enumerate(parts):
        check(part, r + 1)
    x = mine()
    dist.scatter(x, [mine() for _ in range(size)] if rank == 0 else None, 0)
    check(x, 1)
    dist.reduce_scatter(x, [mine() for _ in range(size)])
    check(x, total)


@pytest.mark.parametrize("size", [2, 3])
def test_subclasses_of_tensors_are_unwrapped(c10d: Any, size: int) -> None:
    c10d(check_two_tensors, size=size)


def check_names() -> None:
    group, size = dist.group.WORLD, dist.get_world_size()
    whole, mine = torch.zeros(3 * size), torch.ones(3)
    group._allgather_base(output=whole, input=mine).wait()
    assert torch.equal(whole, torch.ones(3 * size))
    group.allreduce(tensors=[mine]).wait()
    assert torch.equal(mine, torch.full((3,), float(size)))


def test_tensors_may_be_given_by_their_names(c10d: Any) -> None:
    c10d(check_names, size=2)


def check_fake_tensors() -> None:
    size = dist.get_world_size()
    with FakeTensorMode() as mode:
        x = torch.ones(4)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather([torch.ones(4) for _ in range(size)], x)
        whole = torch.ones(4 * size)
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter_tensor(x, whole)
        dist.all_to_all_single(torch.ones(4 * size), whole)
    dist.all_reduce(mode.from_tensor(torch.ones(4)))  # outside its mode
    real = torch.ones(4)
    dist.all_reduce(real)
    assert torch.equal(real, torch.full((4,), float(size)))


def test_fake_tensors_send_nothing(c10d: Any) -> None:
    c10d(check_fake_tensors, size=2)
