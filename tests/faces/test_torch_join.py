"""Ranks with different numbers of batches: those without take part with zeros until all have joined."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")

import slipstream  # noqa: E402
import slipstream.torch as hvd  # noqa: E402
from comm import ranks  # noqa: E402
from slipstream.base.errors import Mismatch  # noqa: E402
from slipstream.comm.membership.group import world  # noqa: E402
from slipstream.comm.negotiation.negotiator import negotiator_of  # noqa: E402


def batches_of(rank: int) -> int:
    """Rank 1 has none."""
    return (3, 0, 5)[rank % 3]


def gradient(rank: int, step: int) -> float:
    return rank + 1.0 + 10 * step


def optimizer_of(parameter: Any, **options: Any) -> Any:
    return hvd.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0), named_parameters=[("weight", parameter)], **options
    )


def train(optimizer: Any, parameter: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        (parameter * gradient(hvd.rank(), step)).sum().backward()
        optimizer.step()


def expected(steps: range) -> float:
    """After steps of all ranks that have so many batches."""
    return -sum(
        sum(gradient(r, step) for r in range(hvd.size()) if batches_of(r) > step) / hvd.size()
        for step in steps
    )


def check_uneven() -> None:
    most = max(map(batches_of, range(hvd.size())))
    parameter = torch.nn.Parameter(torch.zeros(1000))
    optimizer = optimizer_of(parameter)
    for _ in range(2):  # the second time the exchange knows its gradients
        with torch.no_grad():
            parameter.zero_()
        train(optimizer, parameter, range(batches_of(hvd.rank())))
        last = hvd.join()
        if batches_of(hvd.rank()) == most:
            assert torch.allclose(parameter, torch.full_like(parameter, expected(range(most))))
        assert hvd.broadcast(torch.tensor([last]), 0).item() == last  # the same on all ranks
        hvd.broadcast_parameters([("weight", parameter)], root_rank=last)
        assert torch.allclose(parameter, torch.full_like(parameter, expected(range(most))))


def check_last() -> None:
    """The rank that still steps when the others have joined is the last one."""
    parameter = torch.nn.Parameter(torch.zeros(8))
    optimizer = optimizer_of(parameter)
    train(optimizer, parameter, range(1))
    late = hvd.size() - 1
    if hvd.rank() == late:
        for _ in range(20):
            train(optimizer, parameter, range(1))
    assert hvd.join() == late


def check_last_by_operations() -> None:
    """A rank that took part in others' operations has not joined last, however short its wait was."""
    late = hvd.size() - 1
    if hvd.rank() == late:
        for number in range(3):
            hvd.allreduce(torch.ones(4), name=f"late {number}")
        assert hvd.join() == late
        return
    with patch("slipstream.gradients.joining.time", SimpleNamespace(monotonic=lambda: 0.0)):
        assert hvd.join() == late


def check_two_optimizers() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(10 + i)) for i in range(2)]
    optimizers = [optimizer_of(parameter) for parameter in parameters]
    if hvd.rank() == 0:
        for step in range(4):
            which = step * step % 2
            train(optimizers[which], parameters[which], range(step, step + 1))
    hvd.join()
    if hvd.rank() == 0:
        for which, steps in ((0, (0, 2)), (1, (1, 3))):
            wanted = -sum(gradient(0, step) for step in steps) / hvd.size()
            assert torch.allclose(parameters[which], torch.full_like(parameters[which], wanted))


def check_without_steps() -> None:
    for _ in range(3):
        assert hvd.join() in range(hvd.size())
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2


def every_operation(step: int, named: bool) -> None:
    """As a rank calls them that has not joined, where rank 0 has: its part is empty, or changes nothing."""
    rank, size = hvd.rank(), hvd.size()
    others = size - 1

    def call(name: str) -> str | None:
        return name if named else None

    ones = torch.ones(4)
    assert hvd.allreduce(ones, name=call("sum"), op=hvd.Sum).tolist() == [others] * 4
    assert torch.allclose(hvd.allreduce(ones, name=call("mean")), ones * others / size)
    for dtype in (torch.float32, torch.int32):
        values = torch.full((3,), rank + 5, dtype=dtype)
        assert hvd.allreduce(values, name=call(f"least {dtype}"), op=hvd.Min).tolist() == [6] * 3
        assert hvd.allreduce(-values, name=call(f"most {dtype}"), op=hvd.Max).tolist() == [-6] * 3
        product = hvd.allreduce(
            torch.full((3,), 2, dtype=dtype), name=call(f"product {dtype}"), op=hvd.Product
        )
        assert product.tolist() == [2**others] * 3
    handles = [hvd.allreduce_async(ones * i, name=call(f"small {i}"), op=hvd.Sum) for i in range(5)]
    assert [hvd.synchronize(handle)[0].item() for handle in handles] == [i * others for i in range(5)]
    both = hvd.grouped_allreduce([ones, torch.ones(100_000)], name=call("both"), op=hvd.Sum)
    assert all((one == others).all() for one in both)
    rows = hvd.allgather(torch.full((rank, 2), float(rank)), name=call("rows"))
    assert rows[:, 0].tolist() == [float(r) for r in range(1, size) for _ in range(r)]
    assert hvd.broadcast(ones * rank, size - 1, name=call("from the last")).tolist() == [size - 1] * 4
    split = hvd.alltoall(torch.arange(float(size)), [1] * size, name=call("split"))
    assert split[0].tolist() == [rank] * others
    assert split[1].tolist() == [0] + [1] * others
    share = hvd.reducescatter(torch.ones(size, 2), name=call("share"), op=hvd.Sum)
    assert share.tolist() == [[others, others]]
    shares = hvd.grouped_reducescatter([torch.ones(size)] * 2, name=call("shares"), op=hvd.Sum)
    assert [one.tolist() for one in shares] == [[others]] * 2
    both = hvd.grouped_allgather([torch.ones(rank), torch.zeros(1)], name=call("rows of two"))
    assert [len(one) for one in both] == [sum(range(size)), others]
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    found = hvd.sparse_allreduce_async(sparse, call("sparse"), hvd.Sum)().to_dense()
    assert found.tolist() == [0] + [1] * others
    hvd.barrier()
    parameter = torch.nn.Parameter(torch.ones(2))
    for impossible in (
        lambda: hvd.broadcast(ones, 0, name=call(f"from the first {step}")),
        lambda: hvd.broadcast_object(1, 0, name=call("object")),
        lambda: hvd.allgather_object(1, name=call("objects")),
        lambda: hvd.broadcast_parameters([parameter], size - 1),
    ):
        with pytest.raises(Mismatch, match="cannot do without rank 0, which has joined"):
            impossible()


def check_every_operation() -> None:
    for step in range(6):
        if hvd.rank():
            for _ in range(step // 2):
                every_operation(step, named=step % 2 == 0)
        assert hvd.join() in range(hvd.size())
        assert hvd.allreduce(torch.ones(2), name="sum", op=hvd.Sum).tolist() == [hvd.size()] * 2


def lock(name: str | None) -> None:
    """Calls the same operation until all ranks have locked its order."""
    for _ in range(10_000):
        locked = torch.full((2,), float(negotiator_of(world()).locked))
        if hvd.allreduce(locked, name=name, op=hvd.Min).tolist() == [1, 1]:
            return
    raise AssertionError("the order is not locked")


def check_an_order_that_is_locked_ends_by_a_join() -> None:
    for name in ("again", None):
        lock(name)
        if hvd.rank() == hvd.size() - 1:
            for _ in range(10):
                assert hvd.allreduce(torch.ones(2), name=name, op=hvd.Sum).tolist() == [1, 1]
        hvd.join()
        assert hvd.allreduce(torch.ones(2), name=name, op=hvd.Sum).tolist() == [hvd.size()] * 2


def check_more_calls_without_names_than_the_rank_that_has_joined() -> None:
    """What has no name is matched by its number: all ranks count on from the same one when all have joined."""
    for step in range(3):
        for _ in range(hvd.rank() * 3 + step):
            hvd.allreduce_async(torch.ones(2), op=hvd.Sum)  # nobody waits for it
        hvd.join()
        wanted = [hvd.size() * (hvd.size() - 1) / 2] * 2
        assert hvd.allreduce(torch.full((2,), float(hvd.rank())), op=hvd.Sum).tolist() == wanted


def check_operations_beside_a_join_are_refused() -> None:
    """They would lack this rank, and it would get a sum of its own."""
    aside = slipstream.Group()
    hvd.barrier()  # there is a negotiator
    negotiator = negotiator_of(world())
    before = negotiator.joined
    if hvd.rank() == 0:
        thread = threading.Thread(target=hvd.join)
        thread.start()
        while negotiator.joined is before:
            time.sleep(0.001)
        with pytest.raises(
            RuntimeError, match="allreduce 'x' was called while another thread of this rank waits"
        ):
            hvd.allreduce(torch.ones(2), name="x")
        slipstream.barrier(group=aside)
        thread.join()
    else:
        slipstream.barrier(group=aside)
        hvd.join()
    assert hvd.allreduce(torch.ones(2), name="x", op=hvd.Sum).tolist() == [hvd.size()] * 2


CHECKS = [
    check_uneven,
    check_last,
    check_last_by_operations,
    check_two_optimizers,
    check_without_steps,
    check_every_operation,
    check_an_order_that_is_locked_ends_by_a_join,
    check_more_calls_without_names_than_the_rank_that_has_joined,
    check_operations_beside_a_join_are_refused,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_two_ranks(two: Any, check: Any) -> None:
    two(check)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)


def test_a_rank_may_have_joined_for_longer_than_operations_may_take() -> None:
    script = Path(__file__).with_name("join_long_rank.py")
    for text in ranks.run(script, 2, timeout=60, env={"SLIPSTREAM_TIMEOUT": "3"}):
        assert text.splitlines()[-1].startswith("joined 0 "), text


def test_a_rank_that_has_dropped_the_optimizer_ends_all() -> None:
    script = Path(__file__).with_name("join_rank.py")
    for text in ranks.run(script, 2, timeout=60):
        assert "rank 1 has joined, and does not have optimizer 1 any more" in text
