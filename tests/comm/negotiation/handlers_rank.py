"""One of several ranks, one of which a signal's handler or another thread interrupts amid its calls.

handlers_rank.py handles            a handler calls an operation amid a call of a locked order
handlers_rank.py holds              a handler waits as its thread has the lock
handlers_rank.py twice              two threads call one name of a locked order at once
handlers_rank.py interrupted        a handler breaks off a call of a locked order
handlers_rank.py interrupted_void   the same, as a void sum without a name lands
handlers_rank.py no_source          the input of a sum cannot be had
handlers_rank.py no_target          there is no room for the result of a sum that runs alone, on one rank

With NOW in the environment, blocking sums run by `Negotiator.run_now`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from calls import (
    NOW,
    RANK,
    SIZE,
    WAITS,
    WORLD,
    Shared,
    blocking,
    check,
    check_sum,
    error_of,
    lock,
    request_of,
    submit,
)
from locking import count_alone, patient
from numpy.typing import NDArray

import slipstream
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.negotiated import DONE, Negotiated
from slipstream.comm.negotiation.negotiator import negotiator_of


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
        while not WAITS.search(WORLD.session.report()):
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


def holds() -> None:
    """A handler between the steps of a call, whose thread has the lock, cannot wait either. The operation goes on."""
    for prepare in (lambda: None, lambda: lock("x")):
        prepare()
        mine = negotiator_of(WORLD)
        with mine._lock:
            work = submit("y", shared=True)
            error = error_of(work)
        assert "a signal's handler cannot wait" in str(error), error
        check("y", work)


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
    while not WAITS.search(WORLD.session.report()):
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


def no_target() -> None:
    """What rank 0 raises before its sum has begun, be it of the session's own kind, all ranks hear of at once."""
    lock("")
    check_sum("", blocking(""))
    alone = count_alone()

    class Lacking(Shared):
        def target(self) -> tuple[NDArray[np.float64], int]:
            raise slipstream.Mismatch("no room")

    part = (Lacking if RANK == 0 else Shared)(np.zeros(5))
    try:
        negotiator_of(WORLD).run_now(request_of("", 5), part, lambda _: DONE)
    except slipstream.SlipstreamError as error:
        text = str(error)
    else:
        raise AssertionError("the sum has come to its end")
    assert alone == [""]
    assert "no room" in text, text
    assert RANK == 0 or "rank 0 was interrupted as it started an operation" in text, text


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
    cases = handles, holds, twice, interrupted, interrupted_void, no_source, no_target
    with patient():
        {one.__name__: one for one in cases}[sys.argv[1]]()
    slipstream.shutdown()


main()
