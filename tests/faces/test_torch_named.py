"""Operations with a name: any order on each rank, and a mismatch that fails one of them alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402
from comm.negotiation.locking import patient, until_locked  # noqa: E402
from slipstream.base.errors import Mismatch  # noqa: E402
from slipstream.comm.membership.group import world  # noqa: E402
from slipstream.comm.negotiation.negotiator import negotiator_of  # noqa: E402


def every_operation() -> dict[str, Callable[[], Any]]:
    """Each starts an operation, of the kind that its name begins with, and returns its handle."""
    rank, size = hvd.rank(), hvd.size()
    ones, rows = torch.ones(4), torch.full((rank + 1, 3), float(rank))
    some = torch.arange(2.0 * size).view(size, 2)
    return {
        "allreduce": lambda: hvd.allreduce_async(ones * (rank + 1), name="sum", op=hvd.Sum),
        "allreduce strided": lambda: hvd.allreduce_async_(some.clone().t(), name="strided", op=hvd.Sum),
        "allreduce grouped": lambda: hvd.grouped_allreduce_async([ones, ones[:2]], name="both", op=hvd.Sum),
        "allgather": lambda: hvd.allgather_async(rows, name="rows"),
        "allgather grouped": lambda: hvd.grouped_allgather_async([rows, rows[:1]], name="rows of two"),
        "broadcast": lambda: hvd.broadcast_async(ones * rank, size - 1, name="rows"),
        "alltoall": lambda: hvd.alltoall_async(some, name="some"),
        "alltoall splits": lambda: hvd.alltoall_async(some, [1] * size, name="splits"),
        "reducescatter": lambda: hvd.reducescatter_async(some, name="shares", op=hvd.Sum),
        "reducescatter grouped": lambda: hvd.grouped_reducescatter_async(
            [some, some], name="two", op=hvd.Sum
        ),
    }


def check_values(found: dict[str, Any]) -> None:
    rank, size = hvd.rank(), hvd.size()
    ones, some = torch.ones(4), torch.arange(2.0 * size).view(size, 2)
    gathered = torch.cat([torch.full((r + 1, 3), float(r)) for r in range(size)])
    exchanged = some[rank].repeat(size, 1)
    assert torch.equal(found["allreduce"], ones * sum(range(1, size + 1)))
    assert torch.equal(found["allreduce strided"], some.t() * size)
    assert [x.tolist() for x in found["allreduce grouped"]] == [[size] * 4, [size] * 2]
    assert torch.equal(found["allgather"], gathered)
    assert torch.equal(found["allgather grouped"][0], gathered)
    assert found["allgather grouped"][1].shape == (size, 3)
    assert torch.equal(found["broadcast"], ones * (size - 1))
    assert torch.equal(found["alltoall"], exchanged)
    assert torch.equal(found["alltoall splits"][0], exchanged)
    assert found["alltoall splits"][1].tolist() == [1] * size
    assert torch.equal(found["reducescatter"], some[rank : rank + 1] * size)
    assert all(torch.equal(x, some[rank : rank + 1] * size) for x in found["reducescatter grouped"])


def check_any_order() -> None:
    rng = random.Random(hvd.rank())
    for _ in range(10):
        starts = list(every_operation().items())
        rng.shuffle(starts)
        handles = {name: start() for name, start in starts}  # none of them waits for the other ranks
        order = list(handles)
        rng.shuffle(order)
        check_values({name: hvd.synchronize(handles[name]) for name in order})


def check_synchronous_beside_unnamed() -> None:
    for step in range(10):
        assert hvd.allreduce(torch.ones(3), name="loss", op=hvd.Sum).tolist() == [hvd.size()] * 3
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
        x = torch.full((2,), float(step), requires_grad=True)
        hvd.allreduce(x, name="loss", op=hvd.Sum).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [hvd.size()] * 2


def check_a_mismatch_fails_alone() -> None:
    odd = hvd.rank() == hvd.size() - 1
    before = hvd.allreduce_async(torch.ones(3), name="before", op=hvd.Sum)
    cases: list[tuple[str, Callable[[], int]]] = [
        ("shape", lambda: hvd.allreduce_async(torch.ones(3 + odd), name="x")),
        ("dtype", lambda: hvd.allreduce_async(torch.ones(3, dtype=torch.float64 if odd else None), name="x")),
        ("op", lambda: hvd.allreduce_async(torch.ones(3), name="x", op=hvd.Sum if odd else hvd.Max)),
        ("factors", lambda: hvd.allreduce_async(torch.ones(3), name="x", prescale_factor=1.0 + odd)),
        ("root", lambda: hvd.broadcast_async(torch.ones(3), int(odd), name="x")),
        ("width", lambda: hvd.allgather_async(torch.ones(3, 2 + odd), name="x")),
        ("several", lambda: hvd.grouped_allreduce_async([torch.ones(3)] * (2 + odd), name="x")),
    ]
    for what, call in cases:
        handle = call()
        with pytest.raises(Mismatch, match=r"'x' was called by ranks? 0") as caught:
            hvd.synchronize(handle)
        assert f"rank {hvd.size() - 1} with" in str(caught.value), what
    assert hvd.synchronize(before).tolist() == [hvd.size()] * 3
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3


def check_arguments() -> None:
    """They are wrong at the call, and nobody else hears of it."""
    with pytest.raises(ValueError, match="op must be one of"):
        hvd.allreduce_async(torch.ones(3), name="x", op=17)
    with pytest.raises(ValueError, match="is not one of the ranks"):
        hvd.broadcast_async(torch.ones(3), 99, name="x")
    with pytest.raises(ValueError, match="at least one dimension"):
        hvd.reducescatter_async(torch.ones(()), name="x")
    with pytest.raises(ValueError, match="splits must be"):
        hvd.alltoall_async(torch.ones(3), [1], name="x")
    with pytest.raises(ValueError, match="surrogates not allowed"):
        hvd.allreduce_async(torch.ones(3), name="\ud800")
    assert hvd.allreduce(torch.ones(3), name="ü" * 3000, op=hvd.Sum).tolist() == [hvd.size()] * 3
    assert hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum).tolist() == [hvd.size()] * 3


def check_wrong_on_all_ranks() -> None:
    """Arguments that no rank may give fail the call, as without a name, and the job goes on."""
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (3,))
    for call in (
        lambda: hvd.allreduce(sparse, name="x"),
        lambda: hvd.broadcast(sparse, 0, name="x"),
        lambda: hvd.allreduce(torch.ones(3, dtype=torch.complex64), name="x", op=hvd.Max),
    ):
        with pytest.raises(ValueError):
            call()
    assert hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum).tolist() == [hvd.size()] * 3


def check_groups_with_gradients() -> None:
    """Some ranks ask for gradients, others do not, and the groups come in another order."""
    names = ["a", "b"][:: -1 if hvd.rank() else 1]
    found = {}

    def call(name: str) -> None:
        value = float(names.index(name) if hvd.rank() == 0 else 1 - names.index(name))
        tensors = [torch.full((1,), value, requires_grad=hvd.rank() == 0), torch.full((1,), value + 10)]
        found[name] = hvd.grouped_allgather(tensors, name=name)

    threads = [threading.Thread(target=call, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value, name in enumerate("ab"):
        assert [x.tolist() for x in found[name]] == [[value] * hvd.size(), [value + 10] * hvd.size()]
    shares = hvd.grouped_reducescatter(
        [torch.ones(hvd.size(), requires_grad=hvd.rank() == 0)] * 2, name="shares", op=hvd.Sum
    )
    assert [x.tolist() for x in shares] == [[hvd.size()]] * 2


def check_process_sets() -> None:
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        names = ["one", "two"][:: 1 if hvd.rank() else -1]
        handles = {n: hvd.allreduce_async(torch.ones(2), name=n, op=hvd.Sum, process_set=pair) for n in names}
        for handle in handles.values():
            assert hvd.synchronize(handle).tolist() == [2, 2]
    assert hvd.allreduce(torch.ones(2), name="one", op=hvd.Sum).tolist() == [hvd.size()] * 2
    hvd.remove_process_set(pair)
    negotiators = [one for one in threading.enumerate() if one.name == "slipstream negotiation"]
    assert len(negotiators) == 1  # that of all ranks


def check_steps_that_lock_the_order() -> None:
    """Every operation, again and again: small sums travel together, what else there is passes a gate."""
    x = torch.full((2,), 3.0, dtype=torch.float16)

    def every() -> None:
        handles = {name: start() for name, start in every_operation().items()}
        check_values({name: hvd.synchronize(handle) for name, handle in handles.items()})

    def others() -> None:
        assert hvd.allreduce_(x.clone(), name="half", op=hvd.Average).tolist() == [3, 3]
        assert hvd.allreduce(x.t(), name="not in place").tolist() == [3, 3]
        assert hvd.allreduce(torch.zeros(0), name="empty").numel() == 0
        large = torch.ones(100_000)
        hvd.allreduce_(large, name="large", op=hvd.Sum)
        assert (large == hvd.size()).all()

    until_locked(every)
    until_locked(others)


def check_small_sums_travel_together() -> None:
    """A hundred of a step need few operations of the engine."""
    from slipstream.comm.negotiation import buffers

    count = [0]
    reduce = buffers.Buffer.reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return reduce(*args, **kwargs)

    def step() -> None:
        tensors = [torch.full((10,), float(i)) for i in range(100)]
        handles = [hvd.allreduce_async_(x, name=f"{i}", op=hvd.Sum) for i, x in enumerate(tensors)]
        for i, handle in enumerate(handles):
            assert hvd.synchronize(handle).tolist() == [i * hvd.size()] * 10

    until_locked(step)
    buffers.Buffer.reduce = counted  # type: ignore[method-assign]
    try:
        with patient():
            step()
    finally:
        buffers.Buffer.reduce = reduce  # type: ignore[method-assign]
    assert negotiator_of(world()).locked
    assert count[0] <= 20, count


CHECKS = [
    check_steps_that_lock_the_order,
    check_small_sums_travel_together,
    check_any_order,
    check_synchronous_beside_unnamed,
    check_a_mismatch_fails_alone,
    check_arguments,
    check_wrong_on_all_ranks,
    check_groups_with_gradients,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_two_ranks(two: Any, check: Any) -> None:
    two(check)


@pytest.mark.parametrize(
    "check", [*CHECKS, check_process_sets], ids=lambda check: check.__name__.removeprefix("check_")
)
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)
