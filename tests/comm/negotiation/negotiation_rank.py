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

With NOW in the environment, blocking sums run by `Negotiator.run_now`.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from calls import (
    NOW,
    RANK,
    SIZE,
    WORLD,
    blocking,
    check,
    check_sum,
    error_of,
    lock,
    submit,
)
from locking import count_alone, patient

import slipstream
from slipstream.base.spans import format_spans
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation import rounds as negotiation_rounds
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.negotiated import Negotiated
from slipstream.comm.negotiation.negotiator import negotiator_of


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
    )
    # Some are about ranks that leave an order as they wait in vain.
    with contextlib.nullcontext() if case in ("deviates", "schedules") else patient():
        {one.__name__: one for one in cases}[case](*map(int, arguments))
    slipstream.shutdown()
    assert not any(thread.name == "slipstream negotiation" for thread in threading.enumerate())


main()
