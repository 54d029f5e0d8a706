"""One of several ranks whose named operations come in different orders.

negotiation_rank.py orders ROUNDS   every rank calls the same operations in an order of its own, in some threads
negotiation_rank.py schedules ROUNDS    ranks join, lack names, call them late, or call new ones
negotiation_rank.py leaves          rank 1 leaves a locked order by a new name
negotiation_rank.py differs         one operation is called with different arguments, others go on
negotiation_rank.py fails           the last rank cannot start an operation that all have called
negotiation_rank.py lacks           the last rank calls nothing, and leaves
negotiation_rank.py apart           each rank first waits for what the others call later
negotiation_rank.py never           each rank waits for what the others never call
negotiation_rank.py locks           equal steps lock the order, without rounds; what is not equal unlocks it
negotiation_rank.py deviates ROUNDS locked orders that ranks deviate from at random, in several threads
negotiation_rank.py dies            a rank ends in a locked order
negotiation_rank.py stalls          a rank does not go on in a locked order, though it lives
negotiation_rank.py joins           the last rank joins, and the others go on without names for longer than the limit
negotiation_rank.py handles         a signal's handler calls an operation amid a call of a locked order
negotiation_rank.py twice           two threads call one name of a locked order at once
negotiation_rank.py interrupted     a signal's handler breaks off a call of a locked order
negotiation_rank.py interrupted_void  the same, as a void sum without a name lands
negotiation_rank.py no_source       the input of a sum cannot be had

With NOW in the environment, blocking sums run by `Negotiator.run_now`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from ctypes import memmove
from typing import Any

import numpy as np
from locking import count_alone, patient, until_locked
from numpy.typing import NDArray

import slipstream
from slipstream.base.dtypes import DType, Op
from slipstream.base.spans import format_spans
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation import rounds as negotiation_rounds
from slipstream.comm.negotiation.agreement import Request, Sum
from slipstream.comm.negotiation.negotiated import DONE, Negotiated
from slipstream.comm.negotiation.negotiator import negotiator_of

slipstream.init()
RANK, SIZE = slipstream.rank(), slipstream.size()
NOW = "NOW" in os.environ
_WAITS = re.compile(r"\n  waits: ")
WORLD = slipstream.world()


class Shared:
    """The part of an array in a buffer that several share."""

    def __init__(self, data: NDArray[np.float64]) -> None:
        self.data = data

    def pack(self, group: Group, address: int) -> None:
        memmove(address, self.data.ctypes.data, self.data.nbytes)

    def unpack(self, address: int) -> NDArray[np.float64]:
        result = np.empty_like(self.data)
        memmove(result.ctypes.data, address, result.nbytes)
        return result

    def source(self, group: Group) -> int:
        return self.data.ctypes.data

    def target(self) -> tuple[NDArray[np.float64], int]:
        result = np.empty_like(self.data)
        return result, result.ctypes.data


def own(name: str) -> float:
    return RANK + 1.0 + len(name)


def submit(
    name: str,
    count: int = 5,
    start: Callable[[Group], slipstream.Work] | None = None,
    sync: bool = False,
    shared: bool = False,
    value: float | None = None,
) -> Negotiated:
    data = np.full(count, own(name) if value is None else value)

    def begin(group: Group) -> slipstream.Work:
        return slipstream.all_reduce(data, group=group, async_op=True)  # type: ignore[return-value]

    one = Sum(int(DType.F64), int(Op.SUM), count, 8 * count) if shared else None
    request = Request("all_reduce", name, f"{count} elements", sum=one)
    return negotiator_of(WORLD).submit(request, start or begin, Shared(data) if shared else None, sync)


def check(name: str, work: Negotiated, wanted: float | None = None) -> None:
    check_sum(name, work.wait(), wanted)
    assert work.done()


def check_sum(name: str, found: NDArray[np.float64], wanted: float | None = None) -> None:
    if wanted is None:
        wanted = sum(r + 1.0 + len(name) for r in range(SIZE))
    assert (found == wanted).all()


@functools.cache
def request_of(name: str, count: int) -> Request:
    one = Sum(int(DType.F64), int(Op.SUM), count, 8 * count)
    return Request("all_reduce", name, f"{count} elements", sum=one)


def blocking(name: str, count: int = 5) -> NDArray[np.float64]:
    """A sum that this thread waits for."""
    if not NOW:
        return submit(name, count, sync=True, shared=True).wait()  # type: ignore[no-any-return]
    data = np.full(count, own(name))
    request = request_of(name, count)  # one that is known already runs alone

    def begin(group: Group) -> slipstream.Work:
        return slipstream.all_reduce(data, group=group, async_op=True)  # type: ignore[return-value]

    return negotiator_of(WORLD).run_now(request, Shared(data), begin)  # type: ignore[no-any-return]


def error_of(work: Negotiated) -> Exception:
    try:
        work.wait()
    except Exception as error:
        return error
    raise AssertionError("no error")


def orders(rounds: int) -> None:
    rng = random.Random(RANK)

    def part(thread: int) -> None:
        for _ in range(rounds):
            names = [f"{thread}/{'x' * i}" for i in range(8)]
            rng.shuffle(names)
            works = {name: submit(name) for name in names}
            rng.shuffle(names)
            for name in names:
                check(name, works[name])

    threads = [threading.Thread(target=part, args=(one,)) for one in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAIT = "wait"  # in place of a name: for all that this rank has called
KINDS = ("same", "shuffled", "new", "late", "lacks", "joins")


def schedule(rng: random.Random, kind: str, names: list[str], number: int) -> list[list[str]]:
    """What each rank calls, in order: the same list on all ranks."""
    orders = [list(names) for _ in range(SIZE)]
    odd = rng.randrange(SIZE)
    for rank, order in enumerate(orders):
        if kind == "new":
            order.append(f"new {number}")
        if kind == "lacks" and rank != odd:
            order.append(f"lacked {number}")
        if kind != "same":
            rng.shuffle(order)
    if kind == "late":
        orders[odd].insert(-1, WAIT)
    if kind == "joins":
        for rank in rng.sample(range(SIZE), rng.randint(1, SIZE - 1)):
            del orders[rank][rng.randint(0, len(names) - 1) :]
    return orders


def without_data(request: Request, group: Group) -> slipstream.Work:
    """The part of a rank that has joined."""
    zeros = np.zeros(int(request.facts.split()[0]))
    return slipstream.all_reduce(zeros, group=group, async_op=True)  # type: ignore[return-value]


class Schedules:
    """One rank's way through schedules that all ranks know."""

    def __init__(self) -> None:
        self.rng = random.Random(SIZE)
        self.names = ["x" * i for i in range(1, 7)]
        self.step = 0
        self.lacked: tuple[int, str] | None = None  # the rank that has not called this name of the one before
        self.kept: list[tuple[str, Negotiated, float]] = []  # what this rank has called of that, and its sum

    def call(self, name: str, callers: list[int], sync: bool = False) -> tuple[str, Negotiated, float]:
        # A name that a rank lacks is called in two schedules.
        salt = 0.0 if name.startswith("lacked") else 10.0 * self.step
        count = 1 + len(name) % 7
        work = submit(name, count, sync=sync, shared=len(name) % 2 > 0, value=RANK + 1.0 + salt)
        return name, work, sum(rank + 1.0 + salt for rank in callers)

    def repeat(self) -> None:
        """Equal steps, which may lock the order."""
        for _ in range(self.rng.choice([0, 0, 6])):
            self.step += 1
            sync = self.rng.random() < 0.5
            called = []
            for name in self.names:
                called.append(self.call(name, list(range(SIZE)), sync))
                if sync:
                    check(*called[-1])
            for one in called:
                check(*one)

    def run(self, kind: str, number: int) -> None:
        self.step += 1
        orders = schedule(self.rng, kind, self.names, number)
        if self.lacked is not None:
            rank, name = self.lacked
            orders[rank].insert(self.rng.randint(0, len(orders[rank])), name)
        called = []
        for name in orders[RANK]:
            if name == WAIT:
                for _, work, _ in called:
                    work.wait()
                continue
            late = name.startswith("lacked")
            called.append(self.call(name, [r for r in range(SIZE) if late or name in orders[r]]))
        joined = negotiator_of(WORLD).join(without_data) if kind == "joins" else None
        for one in self.kept:
            check(*one)
        self.kept = [one for one in called if one[0] == f"lacked {number}"]
        for one in called:
            if one not in self.kept:
                check(*one)
        if joined is not None:
            joined.wait()
        absent = [rank for rank in range(SIZE) if f"lacked {number}" not in orders[rank]]
        self.lacked = (absent[0], f"lacked {number}") if kind == "lacks" else None


def schedules(rounds: int) -> None:
    """Ranks whose calls come in different orders, late, in the next schedule or not at all; each sum is checked."""
    mine = Schedules()
    for number in range(rounds):
        mine.repeat()
        mine.run(KINDS[number % len(KINDS)] if number < len(KINDS) else mine.rng.choice(KINDS), number)
    mine.run("same", rounds)
    assert not mine.kept


def lock(*names: str) -> None:
    """Calls these operations, equally often on all ranks, until their order is locked."""

    def step() -> None:
        for name in names:
            check(name, submit(name, sync=True, shared=len(names) == 1))

    until_locked(step)


def leaves() -> None:
    """Rank 1 alone calls what is not in the cycle; the others call it when they have been told so."""
    lock("first", "second")
    check("first", submit("first", sync=True))
    new = submit("new") if RANK == 1 else None
    second = submit("second")
    while negotiator_of(WORLD).locked:
        time.sleep(0.01)  # a poll of what the thread of the negotiation does
    check("new", new or submit("new"))
    check("second", second)


def differs() -> None:
    before = submit("before")
    bad = submit("bad", 5 + (RANK == SIZE - 1))
    after = submit("after")
    error = error_of(bad)
    assert isinstance(error, slipstream.Mismatch)
    assert f"rank {SIZE - 1} with 6 elements" in str(error), error
    check("before", before)
    check("after", after)
    assert (slipstream.all_reduce(np.ones(3)) == SIZE).all()


def fails() -> None:
    def cannot(group: Group) -> slipstream.Work:
        raise ValueError("no memory")

    error = error_of(submit("x", start=cannot if RANK == SIZE - 1 else None))
    assert "no memory" in str(error)
    if RANK == SIZE - 1:
        assert isinstance(error, ValueError)
    else:
        assert f"rank {SIZE - 1} could not start all_reduce 'x'" in str(error), error


def lacks() -> None:
    if RANK == SIZE - 1:
        slipstream.shutdown()
        return
    text = str(error_of(submit("x")))
    assert text.startswith(f"all_reduce 'x' waits for all ranks to call it: rank {SIZE - 1}"), text
    assert isinstance(error_of(submit("y")), slipstream.SlipstreamError)  # the session has failed


def apart() -> None:
    """Ranks tell each other nothing ever more seldom while each waits for the others."""
    works = {f"from {RANK}": submit(f"from {RANK}")}
    while not negotiator_of(WORLD)._rounds._agreement.missing():
        time.sleep(0.01)
    count, since = negotiator_of(WORLD).rounds, time.monotonic()
    time.sleep(1)  # it is about the pauses in that time
    count = negotiator_of(WORLD).rounds - count
    most = 20 + (time.monotonic() - since) / negotiation_rounds._LONGEST_PAUSE
    for other in range(SIZE):
        if other != RANK:
            works[f"from {other}"] = submit(f"from {other}")
    for name, work in works.items():
        check(name, work)
    assert count < most, (count, most)


def never() -> None:
    """Each rank waits for what the others never call: the limit of an operation ends that, on all ranks."""
    text = str(error_of(submit(f"from {RANK}")))
    assert "Timed out after" in text, text
    assert "not all ranks have called" in text
    assert any(f"'from {r}' (missing: rank" in text for r in range(SIZE)), text


def locks() -> None:
    """Blocking and not, sums that share a buffer and operations that do not."""
    negotiator = negotiator_of(WORLD)
    for shared in (True, False):
        for sync in (True, False):
            names = [f"{shared}{sync}{i}" for i in range(3)]
            for step in range(40):
                works = []
                for name in names:
                    works.append(submit(name, sync=sync, shared=shared))
                    if sync:
                        check(name, works[-1])
                for name, work in zip(names, works, strict=True):
                    check(name, work)
                if step == 30:
                    assert negotiator.locked
                    rounds = negotiator.rounds
            assert negotiator.rounds == rounds
    check("new", submit("new", sync=True))
    assert not negotiator.locked
    for count in [4] * 60:  # as many cycles as any order needs
        check("x", submit("x", count))
    assert negotiator.locked
    error = error_of(submit("x", 4 + (RANK == SIZE - 1)))
    assert isinstance(error, slipstream.Mismatch)
    assert f"rank {SIZE - 1} with 5 elements" in str(error), error
    assert not negotiator.locked
    check("x", submit("x"))


def stalls(idle: int) -> None:
    """The limit of an operation ends the job; the error names the rank and the operation that lacks it.

    ``idle``: the last rank calls nothing. Else it waits for a name of its own.
    """
    lock("first", "second")
    check("first", submit("first", sync=True))
    is_last = RANK == SIZE - 1
    if not is_last:
        error = error_of(submit("second", sync=True))
        named = f"rank {SIZE - 1}" if idle else f"all_reduce 'second' (missing: rank {SIZE - 1})"
        assert named in str(error), error
        assert "'second'" in str(error), error
    elif idle:
        while not raises(WORLD.session.check):
            time.sleep(0.05)
    else:
        text = str(error_of(submit("its own")))
        assert (
            f"all_reduce 'its own' (missing: rank{'s' if SIZE > 2 else ''} {format_spans(range(SIZE - 1))})"
            in text
        ), text


def raises(check: Callable[[], object]) -> bool:
    """Whether the job has failed."""
    try:
        check()
    except slipstream.SlipstreamError:
        return True
    return False


def deviates(rounds: int) -> None:
    """Threads that call the same names in each step, mostly; a rank now and then has another order, or a new name."""
    rng, common = random.Random(RANK), random.Random(0)
    extra = [common.random() < 0.1 for _ in range(rounds)]

    def part(thread: int) -> None:
        names = [f"{thread}/{'x' * i}" for i in range(6)]
        for step in range(rounds):
            order = list(names)
            if rng.random() < 0.1:
                rng.shuffle(order)
            if extra[step]:
                order.insert(rng.randint(0, 6), f"{thread}/extra{step}")
            works = {name: submit(name, shared=len(name) % 2 > 0) for name in order}
            for name in rng.sample(order, len(order)) if step % 3 else order:
                check(name, works[name])
            name = f"{thread}/blocking"
            check_sum(name, blocking(name))

    threads = [threading.Thread(target=part, args=(one,)) for one in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def dies() -> None:
    lock("x")
    check_sum("x", blocking("x"))
    if RANK == SIZE - 1:
        os._exit(0)
    alone = count_alone()
    try:
        blocking("x")
    except slipstream.SlipstreamError as raised:
        error: Exception = raised
    else:
        raise AssertionError("no error")
    assert alone == ["x"] * NOW
    assert isinstance(error, slipstream.PeerLost), error
    assert error.rank == SIZE - 1
    assert isinstance(error_of(submit("y")), slipstream.SlipstreamError)
    os._exit(0)


def joins() -> None:
    """From the start, and in a locked order. Then the others call what is not decided at once."""
    limit = float(os.environ["SLIPSTREAM_TIMEOUT"])
    for step in range(2):
        if step == 1:
            lock("x")
        slipstream.barrier()
        if RANK != SIZE - 1:
            time.sleep(1.5 * limit)  # it is about time
            works = [submit(f"from {RANK}", value=1.0)]
            if RANK > 0:
                slipstream.recv(np.zeros(1), 0)
            elif SIZE > 2:
                while not negotiator_of(WORLD)._rounds.pause:
                    time.sleep(0.01)  # a poll of rounds in which nobody tells anything
                for other in range(1, SIZE - 1):
                    slipstream.send(np.zeros(1), other)
            works += [submit(f"from {other}", value=1.0) for other in range(SIZE - 1) if other != RANK]
            for work in works:
                check("", work, SIZE - 1.0)
        negotiator_of(WORLD).join(without_data).wait()
        slipstream.barrier()


def amid(handler: Callable[..., None]) -> None:
    """Has the signal's handler run once the call that rank 0 makes next waits; the other ranks wait for that."""
    if RANK != 0:
        slipstream.recv(np.zeros(1), 0)
        return
    over = threading.Event()

    def handle(*_: object) -> None:
        try:
            handler()
        finally:
            over.set()

    def ring() -> None:
        while not _WAITS.search(WORLD.session.report()):
            time.sleep(0.01)  # a poll of what the program's thread does
        os.kill(os.getpid(), signal.SIGALRM)
        over.wait()
        for other in range(1, SIZE):
            slipstream.send(np.zeros(1), other)

    signal.signal(signal.SIGALRM, handle)
    threading.Thread(target=ring, daemon=True).start()


def handles() -> None:
    """The handler cannot wait: its own thread runs what comes first. The operation goes on, and is waited for later."""
    lock("x")
    slipstream.barrier()
    works: list[Negotiated] = []
    errors: list[Exception] = []

    def handler() -> None:
        works.append(submit("y", sync=True, shared=True))
        errors.append(error_of(works[0]))

    amid(handler)
    check("x", submit("x", sync=True, shared=True))
    if RANK == 0:
        assert "a signal's handler cannot wait" in str(errors[0]), errors
    else:
        works.append(submit("y", sync=True, shared=True))
    check("y", works[0])


def twice() -> None:
    lock("x")
    check_sum("x", blocking("x"))
    slipstream.barrier()
    if RANK != 0:
        slipstream.recv(np.zeros(1), 0)  # rank 0 waits in its call until this comes
        check_sum("x", blocking("x"))
        return
    alone = count_alone()
    first = threading.Thread(target=lambda: check_sum("x", blocking("x")))
    first.start()
    while not _WAITS.search(WORLD.session.report()):
        time.sleep(0.01)  # a poll of what the other thread does
    try:
        submit("x", shared=True)
    except ValueError:
        pass
    else:
        raise AssertionError("the name was taken twice")
    finally:
        for other in range(1, SIZE):
            slipstream.send(np.zeros(1), other)
        first.join()
    assert alone == ["x"] * NOW


def interrupted() -> None:
    """The call ends, the operation goes on: its result is void or right on all ranks, and the order goes on."""
    lock("x")
    check_sum("x", blocking("x"))
    slipstream.barrier()

    def handler() -> None:
        raise InterruptedError("by a signal")

    amid(handler)
    alone = count_alone()
    if RANK == 0:
        try:
            blocking("x")
        except InterruptedError:
            pass
        else:
            raise AssertionError("the call was not broken off")
    else:
        check_sum("x", blocking("x"))
    for _ in range(20):
        while True:
            try:
                found = blocking("x")
                break
            except ValueError:  # the one that was broken off is not done yet
                time.sleep(0.01)
        check_sum("x", found)
    assert not NOW or alone[:1] == ["x"], alone


def no_source() -> None:
    """A sum whose input cannot be had is not called; the next ones are right, by the order of before."""
    lock("")
    check_sum("", blocking(""))
    alone = count_alone()

    class Lacking(Shared):
        def source(self, group: Group) -> int:
            raise slipstream.Mismatch("no input")

    request = request_of("", 5)
    try:
        negotiator_of(WORLD).run_now(request, Lacking(np.zeros(5)), lambda _: DONE)
    except slipstream.Mismatch:
        pass
    else:
        raise AssertionError("it was called")
    assert not alone
    for _ in range(3):
        check_sum("", blocking(""))
    assert alone == [""] * 3


def interrupted_void() -> None:
    """A handler raises as a sum without a name, which another rank has made void, is about to land: it counts once."""
    lock("")
    check_sum("", blocking(""))
    alone = count_alone()
    mine = negotiator_of(WORLD)
    guarded = mine._guarded.run

    def run(step: Any, *args: Any) -> Any:
        if step == mine._landed:
            mine._guarded.run = guarded  # type: ignore[method-assign]
            raise InterruptedError("by a signal")
        return guarded(step, *args)

    if RANK == 0:
        mine._guarded.run = run  # type: ignore[method-assign,assignment]
        try:
            blocking("")
        except InterruptedError:
            pass
        else:
            raise AssertionError("the call was not broken off")
        assert alone == [""]
        check("other", submit("other"))
    else:
        check("other", submit("other"))
        check_sum("", blocking(""))
    for count in range(5, 25):  # each of its own length: another one would not be taken for it
        check_sum("", blocking("", count))


def main() -> None:
    case, *arguments = sys.argv[1:]
    cases = (
        orders,
        schedules,
        leaves,
        differs,
        fails,
        lacks,
        apart,
        never,
        locks,
        deviates,
        dies,
        stalls,
        joins,
        handles,
        twice,
        interrupted,
        interrupted_void,
        no_source,
    )
    # Some are about ranks that leave an order as they wait in vain.
    with contextlib.nullcontext() if case in ("deviates", "schedules") else patient():
        {one.__name__: one for one in cases}[case](*map(int, arguments))
    slipstream.shutdown()
    assert not any(thread.name == "slipstream negotiation" for thread in threading.enumerate())


main()
