"""Ranks with different numbers of batches: those without take part with zeros until all have joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from comm import ranks  # noqa: E402
from slipstream.base.errors import Mismatch  # noqa: E402


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


def every_named_operation(step: int) -> None:
    """As a rank calls them that has not joined, where rank 0 has: its part is empty, or changes nothing."""
    rank, size = hvd.rank(), hvd.size()
    others = size - 1
    ones = torch.ones(4)
    assert hvd.allreduce(ones, name="sum", op=hvd.Sum).tolist() == [others] * 4
    assert torch.allclose(hvd.allreduce(ones, name="mean"), ones * others / size)
    for dtype in (torch.float32, torch.int32):
        values = torch.full((3,), rank + 5, dtype=dtype)
        assert hvd.allreduce(values, name=f"least {dtype}", op=hvd.Min).tolist() == [6] * 3
        assert hvd.allreduce(-values, name=f"most {dtype}", op=hvd.Max).tolist() == [-6] * 3
        product = hvd.allreduce(torch.full((3,), 2, dtype=dtype), name=f"product {dtype}", op=hvd.Product)
        assert product.tolist() == [2**others] * 3
    handles = [hvd.allreduce_async(ones * i, name=f"small {i}", op=hvd.Sum) for i in range(5)]
    assert [hvd.synchronize(handle)[0].item() for handle in handles] == [i * others for i in range(5)]
    both = hvd.grouped_allreduce([ones, torch.ones(100_000)], name="both", op=hvd.Sum)
    assert all((one == others).all() for one in both)
    rows = hvd.allgather(torch.full((rank, 2), float(rank)), name="rows")
    assert rows[:, 0].tolist() == [float(r) for r in range(1, size) for _ in range(r)]
    assert hvd.broadcast(ones * rank, size - 1, name="from the last").tolist() == [size - 1] * 4
    split = hvd.alltoall(torch.arange(float(size)), [1] * size, name="split")
    assert split[0].tolist() == [rank] * others
    assert split[1].tolist() == [0] + [1] * others
    share = hvd.reducescatter(torch.ones(size, 2), name="share", op=hvd.Sum)
    assert share.tolist() == [[others, others]]
    with pytest.raises(Mismatch, match="cannot do without rank 0, which has joined"):
        hvd.broadcast(ones, 0, name=f"from the first {step}")


def check_every_named_operation() -> None:
    for step in range(4):
        if hvd.rank():
            for _ in range(step):
                every_named_operation(step)
        assert hvd.join() in range(hvd.size())
        assert hvd.allreduce(torch.ones(2), name="sum", op=hvd.Sum).tolist() == [hvd.size()] * 2


def check_an_order_that_is_locked_ends_by_a_join() -> None:
    for _ in range(20):
        hvd.allreduce(torch.ones(2), name="again", op=hvd.Sum)
    if hvd.rank() == hvd.size() - 1:
        for _ in range(10):
            assert hvd.allreduce(torch.ones(2), name="again", op=hvd.Sum).tolist() == [1, 1]
    hvd.join()
    assert hvd.allreduce(torch.ones(2), name="again", op=hvd.Sum).tolist() == [hvd.size()] * 2


CHECKS = [
    check_uneven,
    check_last,
    check_two_optimizers,
    check_without_steps,
    check_every_named_operation,
    check_an_order_that_is_locked_ends_by_a_join,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_two_ranks(two: Any, check: Any) -> None:
    two(check)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)


def test_a_rank_that_waits_in_an_operation_without_a_name_is_told_to_name_it() -> None:
    script = Path(__file__).with_name("joined_unnamed_rank.py")
    texts = ranks.run(script, 2, env={"SLIPSTREAM_TIMEOUT": "3"}, timeout=60)
    assert "this rank has joined (no more batches), and takes part in steps of optimizers" in texts[0]
    assert "an operation without a name, call that one with name=" in texts[0]
    assert "this rank has joined" not in texts[1]


def test_a_rank_that_has_dropped_the_optimizer_ends_all() -> None:
    script = Path(__file__).with_name("join_rank.py")
    for text in ranks.run(script, 2, timeout=60):
        assert "rank 1 has joined, and does not have optimizer 1 any more" in text
