"""Groups, messages and objects as scripts use them, and torch.compile around collectives."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
import torch.distributed.nn.functional as differentiable  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from faces.torch_distributed.training import (  # noqa: E402
    assert_same_parameters,
    model,
    train,
    trained_alone,
)


def subgroups_check() -> None:
    rank = dist.get_rank()
    mine, pairs = dist.new_subgroups(2)
    assert [dist.get_process_group_ranks(pair) for pair in pairs] == [[0, 1], [2, 3]]
    total = torch.tensor([rank])
    dist.all_reduce(total, group=mine)
    assert total.item() == (1 if rank < 2 else 5)
    mine, _ = dist.new_subgroups_by_enumeration([[3, 0], [1, 2]])
    gathered: list[Any] = [None] * 2
    dist.all_gather_object(gathered, rank, group=mine)
    assert gathered == ([0, 3] if rank in (0, 3) else [1, 2])
    assert dist.new_group([1, 3], use_local_synchronization=True) if rank in (1, 3) else True


def test_subgroups(c10d: Any) -> None:
    c10d(subgroups_check, size=4)


def ring_check() -> None:
    """Every rank passes a tensor and its doubles on, in one batch, in both directions."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    sent = [torch.full((300,), float(rank)), torch.arange(4) * rank]
    received = [torch.zeros(300), torch.zeros(4, dtype=torch.long)]
    operations = [
        dist.P2POp(dist.isend, sent[0], right),
        dist.P2POp(dist.irecv, received[1], right),
        dist.P2POp(dist.isend, sent[1], left),
        dist.P2POp(dist.irecv, received[0], left),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(received[0], torch.full((300,), float(left)))
    assert torch.equal(received[1], torch.arange(4) * right)


def test_batches_of_messages(c10d: Any) -> None:
    c10d(ring_check, size=4)


class Thing:
    """Something to pickle."""

    def __init__(self, value: object) -> None:
        self.value = value


def objects_check() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 1000 * rank})
    assert [len(one["text"]) for one in gathered] == [1000 * r for r in range(size)]
    spread: list[Any] = [Thing(rank), rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(spread, src=1)
    assert (spread[0].value, spread[1]) == (1, 1)
    taken: list[Any] = [None]
    dist.scatter_object_list(taken, [[r] * r for r in range(size)] if rank == 0 else None, src=0)
    assert taken[0] == [rank] * rank
    dist.gather_object(rank**2, gathered if rank == 2 else None, dst=2)
    if rank == 2:
        assert gathered == [r**2 for r in range(size)]
    if rank == 0:
        dist.send_object_list([Thing("hello"), 3], dst=1)
    elif rank == 1:
        dist.recv_object_list(spread, src=0)
        assert (spread[0].value, spread[1]) == ("hello", 3)


def objects_of_another_device_check() -> None:
    torch.set_default_device("meta")  # what the script makes its tensors on
    try:
        spread: list[Any] = [Thing(dist.get_rank())]
        dist.broadcast_object_list(spread, src=1, device=torch.device("cpu"))
    finally:
        torch.set_default_device(None)
    assert spread[0].value == 1


@pytest.mark.parametrize("check", [objects_check, objects_of_another_device_check])
def test_objects(c10d: Any, check: Any) -> None:
    c10d(check, size=3)


class Unwelcome:
    """Where it is unpickled, that fails."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def failing_objects_check() -> None:
    """Objects that cannot be pickled, or unpickled, are the caller's mistake: the next call is as good as ever."""
    rank = dist.get_rank()
    for objects in ([lambda: 0, 1], [Unwelcome(), 1], [Thing(2), 1]):
        got: list[Any] = objects if rank == 0 else [None, None]
        wrong = objects[0].__class__ is Unwelcome
        if callable(objects[0]):
            if rank == 0:
                with pytest.raises((AttributeError, pickle.PicklingError)):
                    dist.broadcast_object_list(got, src=0)
                with pytest.raises((AttributeError, pickle.PicklingError)):
                    dist.send_object_list(got, dst=1)
            continue
        if rank == 1 and wrong:
            with pytest.raises(ValueError, match="no number"):
                dist.broadcast_object_list(got, src=0)
            with pytest.raises(ValueError, match="no number"):
                dist.recv_object_list(got, src=0)
            continue
        dist.broadcast_object_list(got, src=0)
        assert wrong or (got[0].value, got[1]) == (2, 1)
        if rank == 0:
            dist.send_object_list(got, dst=1)
        else:
            dist.recv_object_list(got, src=0)


def test_objects_that_cannot_be_pickled_or_unpickled(c10d: Any) -> None:
    c10d(failing_objects_check, size=2)


def bytes_of_objects_check() -> int:
    """How many bytes travel of an object."""
    seen: list[int] = []
    original = dist.distributed_c10d.broadcast

    def broadcast(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(tensor.numel())
        return original(tensor, *args, **kwargs)

    dist.distributed_c10d.broadcast = broadcast
    try:
        dist.broadcast_object_list([b"x" * 100], src=0)
    finally:
        dist.distributed_c10d.broadcast = original
    return seen[-1] - len(pickle.dumps(b"x" * 100))


def test_objects_of_other_backends_are_left_as_they_are(c10d: Any) -> None:
    assert c10d(bytes_of_objects_check, backend="gloo") == [0, 0]
    assert c10d(bytes_of_objects_check, backend="slipstream") == [44, 44]


def differentiable_check() -> None:
    """torch.distributed.nn: gradients flow through collectives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((3,), float(rank + 1), requires_grad=True)
    world = dist.group.WORLD  # the default of these functions is the group there was when they were imported
    parts = differentiable.all_gather(x, group=world)
    (sum((r + 1) * part for r, part in enumerate(parts))).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), float(size * (rank + 1))))
    y = torch.full((3,), float(rank + 1), requires_grad=True)
    (differentiable.all_reduce(y, group=world) * (rank + 1)).sum().backward()
    assert torch.equal(y.grad, torch.full((3,), size * (size + 1) / 2))


def test_gradients_through_collectives(c10d: Any) -> None:
    c10d(differentiable_check, size=3)


def collectives(x: Any) -> Any:
    """A function of functional collectives on the default group."""
    size = dist.get_world_size()
    total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    everyone = functional.all_gather_tensor(total + dist.get_rank(), 0, dist.group.WORLD)
    mine = functional.reduce_scatter_tensor(everyone, "sum", 0, dist.group.WORLD)
    exchanged = functional.all_to_all_single(mine.repeat(size, 1), None, None, dist.group.WORLD)
    return functional.broadcast(exchanged.cos(), 1, dist.group.WORLD)


def functional_check(compiled: bool) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(8.0).reshape(4, 2) + rank
    got = (torch.compile(collectives, fullgraph=True) if compiled else collectives)(x)
    total = sum(2 * (torch.arange(8.0).reshape(4, 2) + r) for r in range(size))
    # block r of what is gathered is total + r on every rank, so the sum for rank r is size times that
    want = torch.cat([(total + r) * size for r in range(size)]).cos()
    torch.testing.assert_close(got + 0, want)


def test_functional_collectives(c10d: Any) -> None:
    c10d(functional_check, False)


@pytest.mark.slow
def test_compiled_functional_collectives(c10d: Any) -> None:
    c10d(functional_check, True)


def out_check() -> None:
    """The variant that writes to a given tensor, which compiled programs use."""
    size, name = dist.get_world_size(), dist.group.WORLD.group_name
    out = torch.zeros(2 * size)
    mine = torch.tensor([1.0, 2.0]) + dist.get_rank()
    operators = torch.ops._c10d_functional
    done = operators.wait_tensor(operators.all_gather_into_tensor_out(mine, size, name, out=out))
    assert done.data_ptr() == out.data_ptr()
    assert out.tolist() == [value + r for r in range(size) for value in (1.0, 2.0)]


def test_functional_all_gather_into_a_given_tensor(c10d: Any) -> None:
    c10d(out_check, size=3)


def compiled_ddp_check() -> None:
    ddp = torch.compile(DDP(model()))
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), dist.get_rank())
    assert_same_parameters(ddp, trained_alone(dist.get_world_size()))


@pytest.mark.slow
def test_compiled_ddp(c10d: Any) -> None:
    c10d(compiled_ddp_check)


def many_groups_check() -> None:
    """Groups come and go; operations of several run at the same time, in different orders on the ranks."""
    rank = dist.get_rank()
    for _ in range(10):
        groups = [dist.new_group() for _ in range(3)]
        order = [0, 1, 2] if rank % 2 else [2, 1, 0]
        tensors = [torch.full((50_000,), float(rank + number)) for number in range(3)]
        works = [dist.all_reduce(tensors[i], group=groups[i], async_op=True) for i in order]
        for work in works:
            work.wait()
        size = dist.get_world_size()
        for number, tensor in enumerate(tensors):
            assert torch.equal(tensor, torch.full((50_000,), size * (size - 1) / 2 + size * number))
        for group in groups:
            dist.destroy_process_group(group)


def test_groups_come_and_go(c10d: Any) -> None:
    c10d(many_groups_check, size=3)
