"""Operations without a name: a mistake fails one of them alone, and steps without names lock their order."""

from __future__ import annotations

import random
import re
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


def check_goes_on() -> None:
    """The job does, with right results."""
    size = hvd.size()
    assert (
        hvd.allreduce(torch.full((3,), float(hvd.rank())), op=hvd.Sum).tolist() == [size * (size - 1) / 2] * 3
    )
    assert hvd.allgather(torch.tensor([hvd.rank()])).tolist() == list(range(size))


def sparse(length: int, dtype: Any = None) -> Any:
    return torch.sparse_coo_tensor([[0]], torch.ones(1, dtype=dtype), (length,))


def mismatches(odd: int) -> list[tuple[str, Callable[[], Any]]]:
    """Calls that differ on the rank that is odd (1, else 0), and words of the error."""
    size, ones, rows = hvd.size(), torch.ones(3), torch.ones(3 * hvd.size())
    other = torch.float64 if odd else torch.float32
    model = torch.nn.Linear(2, 2 + odd)
    return [
        ("Mismatched allreduce tensor shapes", lambda: hvd.allreduce(torch.ones(3 + odd))),
        (
            "Mismatched allreduce tensor shapes",
            lambda: hvd.allreduce(torch.ones((6, 2) if odd else (3, 4)), op=hvd.Max),
        ),
        ("Mismatched data types", lambda: hvd.allreduce(ones.to(other))),
        ("Mismatched reduce operations", lambda: hvd.allreduce(ones, op=hvd.Sum if odd else hvd.Max)),
        ("Mismatched prescale or postscale", lambda: hvd.allreduce(ones, prescale_factor=1.0 + odd)),
        ("Mismatched data types", lambda: hvd.grouped_allreduce([ones] * (2 + odd))),
        ("Mismatched allgather tensor shapes", lambda: hvd.allgather(torch.ones(3, 2 + odd))),
        ("Mismatched data types", lambda: hvd.grouped_allgather([ones, ones.to(other)])),
        ("Mismatched broadcast root ranks", lambda: hvd.broadcast(ones, odd)),
        ("Mismatched broadcast tensor shapes", lambda: hvd.broadcast_(torch.ones(3 + odd), 0)),
        ("Mismatched alltoall tensor shapes", lambda: hvd.alltoall(torch.ones(size, 1 + odd))),
        ("Mismatched data types", lambda: hvd.alltoall(rows.to(other), [3] * size)),
        ("Mismatched reducescatter tensor shapes", lambda: hvd.reducescatter(torch.ones(3 * size, 1 + odd))),
        (
            "Mismatched data types and reducescatter tensor shapes",
            lambda: hvd.grouped_reducescatter([rows] * (1 + odd)),
        ),
        (
            "Mismatched sparse_allreduce tensor shapes",
            lambda: hvd.sparse_allreduce_async(sparse(3 + odd), None, hvd.Sum)(),  # type: ignore[arg-type]
        ),
        ("Mismatched data types", lambda: hvd.sparse_allreduce_async(sparse(3, other), "s", hvd.Sum)()),
        ("Mismatched operations", lambda: hvd.allgather(ones) if odd else hvd.allreduce(ones)),
        ("Mismatched operations", lambda: hvd.barrier() if odd else hvd.allreduce(ones)),
        (
            "Mismatched operations",
            lambda: hvd.broadcast_object(1, 0) if odd else hvd.allgather_object(1),
        ),
        ("Mismatched broadcast_object root ranks", lambda: hvd.broadcast_object({"root": odd}, odd)),
        (
            "Mismatched broadcast_parameters root ranks",
            lambda: hvd.broadcast_parameters(torch.nn.Linear(1, 1).state_dict(), odd),
        ),
        ("parameter 0 is bias", lambda: hvd.broadcast_parameters(model.state_dict(), 0)),
    ]


def check_mismatches() -> None:
    """On all ranks, also at the root, and twice, so that nothing depends on what came before."""
    last = hvd.size() - 1
    for odd_rank in (last, 0):
        for words, call in mismatches(int(hvd.rank() == odd_rank)):
            with pytest.raises(RuntimeError, match=words) as caught:
                call()
            assert isinstance(caught.value, Mismatch)
            check_goes_on()


def check_a_mismatch_amid_others() -> None:
    """Those before and after it come to their ends, and memory that it should have written is as it was."""
    odd = hvd.rank() == hvd.size() - 1
    mine = torch.full((3 + odd,), 7.0)
    before = [hvd.allreduce_async(torch.ones(3), op=hvd.Sum) for _ in range(5)]
    wrong = hvd.allreduce_async_(mine, op=hvd.Sum)
    after = [hvd.allreduce_async(torch.ones(3), op=hvd.Sum) for _ in range(5)]
    for handle in [*after, *before]:
        assert hvd.synchronize(handle).tolist() == [hvd.size()] * 3
    with pytest.raises(Mismatch, match="Where their orders differ, give operations a name="):
        hvd.synchronize(wrong)
    assert mine.tolist() == [7.0] * len(mine)


def check_a_mismatch_in_a_locked_order() -> None:
    negotiator = negotiator_of(world())
    for count in (3, 200_000):
        until_locked(lambda count=count: hvd.allreduce(torch.ones(count)))  # type: ignore[misc]
        with patient(), pytest.raises(Mismatch):
            hvd.allreduce(torch.ones(count + (hvd.rank() == 1)))
        assert not negotiator.locked
        check_goes_on()


def check_mistakes_of_one_rank() -> None:
    """The call raises there, and is as if it had not been: the others wait for the right one."""
    size, ones = hvd.size(), torch.ones(3)
    bad: list[tuple[Callable[[], Any], Callable[[], Any], type[Exception]]] = [
        (lambda: hvd.allreduce(ones, op=17), lambda: hvd.allreduce(ones), ValueError),
        (lambda: hvd.allreduce(ones.to(torch.quint8)), lambda: hvd.allreduce(ones), Exception),
        (lambda: hvd.allreduce(ones, prescale_factor="2"), lambda: hvd.allreduce(ones), TypeError),
        (lambda: hvd.broadcast(ones, 99), lambda: hvd.broadcast(ones, 0), ValueError),
        (lambda: hvd.broadcast_object(1, 99), lambda: hvd.broadcast_object(1, 0), ValueError),
        (
            lambda: hvd.broadcast_object(lambda: 1, hvd.rank()),
            lambda: hvd.broadcast_object(1, 0),
            Exception,
        ),
        (
            lambda: hvd.broadcast_parameters([ones], 99),
            lambda: hvd.broadcast_parameters([ones], 0),
            ValueError,
        ),
        (lambda: hvd.alltoall(torch.ones(size), [1]), lambda: hvd.alltoall(torch.ones(size)), ValueError),
        (
            lambda: hvd.reducescatter(torch.ones(())),
            lambda: hvd.reducescatter(torch.ones(size)),
            ValueError,
        ),
    ]
    for wrong, right, kind in bad:
        if hvd.rank() == size - 1:
            with pytest.raises(kind):
                wrong()
        right()
        check_goes_on()


def check_duplicate_names() -> None:
    """As in Horovod's test: one rank's second call raises, and the first goes on when the others come to it."""
    for turn in range(2):
        if (hvd.rank() == 0) == (turn == 0):
            first = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
            with pytest.raises(ValueError, match="with the same name as another tensor") as caught:
                hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
            others = "|".join(str(rank) for rank in range(hvd.size()) if rank != hvd.rank())
            lacks = f"(rank ({others}) has not|not all of ranks .* have) called it yet"
            told = rf"Rank {hvd.rank()} called the first \d+\.\d s ago, and {lacks}"
            assert turn or re.search(told, str(caught.value))  # in turn 1 rank 0 has called it
        hvd.barrier()
    assert hvd.synchronize(first).tolist() == [hvd.size()] * 3


def check_steps_lock_the_order() -> None:
    """One call again and again, several, blocking or not, small or not, and beside such as have names."""
    size, ones = hvd.size(), torch.ones(3)

    def several() -> None:
        assert hvd.allreduce(ones, op=hvd.Sum).tolist() == [size] * 3
        assert hvd.allreduce(ones, op=hvd.Sum).tolist() == [size] * 3
        assert hvd.allgather(torch.tensor([hvd.rank()])).tolist() == list(range(size))
        assert hvd.allreduce(torch.ones(200_000), op=hvd.Sum)[-1].item() == size
        hvd.barrier()

    def burst() -> None:
        handles = [hvd.allreduce_async(torch.full((5,), float(i)), op=hvd.Sum) for i in range(50)]
        assert [hvd.synchronize(handle)[0].item() for handle in handles] == [i * size for i in range(50)]

    def beside_names() -> None:
        handle = hvd.allreduce_async(ones, name="loss", op=hvd.Sum)
        burst()
        assert hvd.synchronize(handle).tolist() == [size] * 3
        several()

    until_locked(lambda: hvd.allreduce(ones))
    until_locked(several)
    until_locked(burst)
    until_locked(beside_names)
    until_locked(lambda: hvd.allreduce(torch.ones(300_000)))


def check_a_burst_travels_together() -> None:
    from slipstream.comm.negotiation import buffers

    count = [0]
    reduce = buffers.Buffer.reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return reduce(*args, **kwargs)

    def burst() -> None:
        handles = [hvd.allreduce_async_(torch.ones(10)) for _ in range(100)]
        for handle in handles:
            hvd.synchronize(handle)

    until_locked(burst)
    buffers.Buffer.reduce = counted  # type: ignore[method-assign]
    try:
        with patient():
            burst()
    finally:
        buffers.Buffer.reduce = reduce  # type: ignore[method-assign]
    assert count[0] <= 50, count  # not 100


def check_random_mixes(seed: int) -> None:
    """Calls without names in one order, others in orders of each rank; some differ between ranks; then a join."""
    common, own = random.Random(seed), random.Random(100 * seed + hvd.rank())
    size = hvd.size()
    last = common.randrange(size)
    for step in range(30):
        plain = [common.randint(1, 5) for _ in range(common.randint(0, 6))]
        wrong = {i for i in range(len(plain)) if common.random() < 0.05}
        named = [f"{step} {i}" for i in range(common.randint(0, 4))]
        calls: list[tuple[str, int]] = [(name, 4) for name in own.sample(named, len(named))]
        for number in range(len(plain)):  # its order stays, wherever the others come
            calls.insert(
                own.randint(sum(c[0] == "" for c in calls) and _after(calls), len(calls)), ("", number)
            )
        handles: list[tuple[str, int, int]] = []
        for name, number in calls:
            count = number if name else plain[number] + (number in wrong and hvd.rank() == 0)
            handle = hvd.allreduce_async(torch.full((count,), 1.0), name=name or None, op=hvd.Sum)
            handles.append((name, number, handle))
        for name, number, handle in own.sample(handles, len(handles)):
            if not name and number in wrong:
                with pytest.raises(Mismatch):
                    hvd.synchronize(handle)
            else:
                assert set(hvd.synchronize(handle).tolist()) == {float(size)}
    if hvd.rank() == last:
        for step in range(10):
            assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [1.0, 1.0]
            assert hvd.allreduce(torch.ones(2), name=f"late {step % 2}", op=hvd.Sum).tolist() == [1.0, 1.0]
    assert hvd.join() in range(size)
    check_goes_on()


def _after(calls: list[tuple[str, int]]) -> int:
    """The place behind the last call without a name."""
    return 1 + max(place for place, one in enumerate(calls) if not one[0])


def check_process_sets() -> None:
    """Each counts its own calls."""
    pair = hvd.add_process_set([0, 1])
    for _ in range(3):
        if pair.included():
            assert hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=pair).tolist() == [2, 2]
            with pytest.raises(Mismatch, match="Mismatched allreduce tensor shapes"):
                hvd.allreduce(torch.ones(2 + hvd.rank()), process_set=pair)
        check_goes_on()
    hvd.remove_process_set(pair)


def check_factors() -> None:
    """float32 ones for float32 numbers, as in Horovod; exact for doubles and integers."""
    factor = 0.1
    x = torch.arange(100.0) + 1
    wanted = x * torch.tensor(factor)
    assert torch.equal(hvd.allreduce(x, op=hvd.Max, prescale_factor=factor), wanted)
    shares = hvd.reducescatter(torch.ones(hvd.size()), op=hvd.Max, postscale_factor=factor)
    assert torch.equal(shares, torch.tensor([factor]))
    assert torch.equal(hvd.allreduce(x.double(), op=hvd.Max, prescale_factor=factor), x.double() * factor)
    many = torch.full((2,), 10**9, dtype=torch.int64)
    assert hvd.allreduce(many, op=hvd.Max, prescale_factor=factor).tolist() == [10**8] * 2


def check_threads() -> None:
    """A thread that calls operations with names does not disturb the numbers of those without."""
    done = []

    def beside() -> None:
        for step in range(50):
            done.append(hvd.allreduce(torch.ones(2), name=f"beside {step}", op=hvd.Sum)[0].item())

    thread = threading.Thread(target=beside)
    thread.start()
    for _ in range(50):
        check_goes_on()
    thread.join()
    assert done == [hvd.size()] * 50


CHECKS = [
    check_mismatches,
    check_a_mismatch_amid_others,
    check_a_mismatch_in_a_locked_order,
    check_mistakes_of_one_rank,
    check_duplicate_names,
    check_steps_lock_the_order,
    check_a_burst_travels_together,
    check_factors,
    check_threads,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_on_two_ranks(two: Any, check: Any) -> None:
    two(check)


@pytest.mark.parametrize(
    "check", [*CHECKS, check_process_sets], ids=lambda check: check.__name__.removeprefix("check_")
)
def test_on_three_ranks(three: Any, check: Any) -> None:
    three(check)


@pytest.mark.parametrize("seed", range(3))
def test_random_mixes(two: Any, three: Any, seed: int) -> None:
    two(check_random_mixes, seed)
    three(check_random_mixes, seed)
