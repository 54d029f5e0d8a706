"""What the negotiator does amid interrupts, without other ranks."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slipstream.base.errors import Aborted, PeerLost
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.buffers import Buffer, SharedSum
from slipstream.comm.negotiation.locked import Locked, _BrokenOff
from slipstream.comm.negotiation.negotiated import DONE, Negotiated, Pending
from slipstream.comm.negotiation.negotiator import _LOOK, Negotiator
from slipstream.comm.negotiation.order import Batch, LockedOrder


class Session:
    """``why``: what has ended it."""

    def __init__(self) -> None:
        self.why = ""

    def abort(self, why: str) -> None:
        self.why = self.why or why

    def check(self) -> None:
        if self.why:
            raise PeerLost(self.why, 1, "there")

    def add_wait(self, seconds: float) -> None:
        pass


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def negotiator(session: Session) -> Negotiator:
    return negotiator_with(session)


def negotiator_with(session: Session) -> Negotiator:
    settings = SimpleNamespace(timeout=60.0, fusion_threshold=0)
    job = SimpleNamespace(settings=settings, when_left=lambda _: None)
    native = SimpleNamespace(ranks=[0, 1])
    group = SimpleNamespace(session=session, native=native, rank=0, size=2, job=job)
    group.beside, group.use = lambda _: group, lambda *_: None
    found = Negotiator(cast(Group, group))
    found._thread = threading.current_thread()  # it is not to start one
    return found


def call_of(negotiator: Negotiator, start: Callable[[Group], Pending] = lambda _: DONE) -> Negotiated:
    call = Negotiated(negotiator, Request("allreduce", "x", ""), start, None)
    negotiator._calls[call.request.key] = call
    return call


def test_a_name_that_is_taken_says_what_the_first_waits_for(negotiator: Negotiator) -> None:
    first = call_of(negotiator)
    with pytest.raises(ValueError, match=r"Rank 0 called .* s ago, and rank 1 has not called it yet\. Sync"):
        negotiator.submit(first.request, lambda _: DONE)
    over = [False]
    first.go_on(cast(Pending, SimpleNamespace(done=lambda: over[0])))
    with pytest.raises(ValueError, match=r"Rank 0 called .* s ago, and its communication has not ended"):
        negotiator.submit(first.request, lambda _: DONE)
    over[0] = True
    first.since -= 1000
    text = str(negotiator.name_taken(first.request, first))
    assert re.search(r"Rank 0 called the first 10\d\d\.\d s ago, and has not synchronized it", text), text


def locked_with(*followers: Negotiated, **fields: Any) -> Locked:
    whole = {"starter": 0, "runner": 0, "followers": deque(followers), "flights": deque(), **fields}
    return cast(Locked, SimpleNamespace(**whole))


def test_a_wait_ends_where_the_session_has_failed_and_nobody_says_so(
    negotiator: Negotiator, session: Session
) -> None:
    call = call_of(negotiator)
    session.abort("rank 1 is gone")
    with pytest.raises(PeerLost, match="'x' waits for all ranks to call it: rank 1 is gone"):
        call.wait()


def test_an_interrupt_just_before_a_run_stops_all(
    negotiator: Negotiator, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch has been taken out of the order, and nobody runs it."""
    other = call_of(negotiator)

    def submit(call: Negotiated, sync: bool) -> Any:
        negotiator._locked = locked_with(running=SimpleNamespace(calls=[call]))
        return negotiator._locked.running

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(negotiator, "_submit", submit)
    monkeypatch.setattr(negotiator, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        negotiator.submit(Request("allreduce", "y", ""), lambda _: DONE, sync=True)
    assert "rank 0 was interrupted" in session.why
    with pytest.raises(Aborted, match="rank 0 was interrupted"):
        other.wait()


@pytest.mark.parametrize("role", ["starter", "runner"])
def test_a_handler_cannot_wait_while_its_thread_starts_others(negotiator: Negotiator, role: str) -> None:
    """It would wait for what its own thread has to do."""
    negotiator._locked = locked_with(**{role: threading.get_ident()})
    with pytest.raises(RuntimeError, match="signal's handler cannot wait"):
        call_of(negotiator).wait()


def test_an_interrupt_that_breaks_off_a_start_is_told_once(negotiator: Negotiator, session: Session) -> None:
    def start(_: Group) -> Pending:
        raise KeyboardInterrupt

    call = call_of(negotiator, start)
    locked = locked_with(call)
    negotiator._thread = None  # this is the program's
    with pytest.raises(KeyboardInterrupt):
        negotiator._start_followers(locked)
    assert "could not start allreduce 'x'" in session.why
    for _ in range(2):
        with pytest.raises(Aborted, match=r"could not start allreduce 'x'.*KeyboardInterrupt"):
            call.wait()
    negotiator._start_followers(locked)
    assert not locked.followers
    assert locked.starter == 0


def test_an_error_in_the_negotiators_thread_is_the_calls(negotiator: Negotiator) -> None:
    def start(_: Group) -> Pending:
        raise ValueError("no memory")

    call = call_of(negotiator, start)
    negotiator._start_followers(locked_with(call))
    with pytest.raises(ValueError, match="no memory"):
        call.wait()


def test_an_interrupt_just_before_a_start_loses_no_follower(
    negotiator: Negotiator, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(negotiator)
    locked = locked_with(call)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(negotiator, "_begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            negotiator._start_followers(locked)
    assert not call.decided()
    negotiator._start_followers(locked)
    assert call.decided()
    assert not locked.followers


def test_the_thread_sleeps_while_another_one_starts_what_is_next(
    negotiator: Negotiator, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr(negotiator._guarded, "wait", waits.append)
    order = SimpleNamespace(void=False, over=False)
    locked = locked_with(call_of(negotiator), starter=1, order=order)
    locked.settle, locked.wait_left = (lambda: None), (lambda: float("inf"))  # type: ignore[method-assign]
    locked.busy = lambda: True  # type: ignore[method-assign]
    assert negotiator._guarded.run(negotiator._look_after, locked) is None
    assert waits == [_LOOK]


def test_an_interrupt_after_the_starts_leaves_them_to_others(negotiator: Negotiator) -> None:
    """The handler runs where the thread takes the lock to say that it is through."""
    locked = locked_with(call_of(negotiator))

    class Lock:
        """The third time it is taken, a signal comes."""

        taken = 0

        def __enter__(self) -> None:
            self.taken += 1
            if self.taken == 3:
                raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None:
            pass

    negotiator._lock = cast(Any, Lock())
    with pytest.raises(KeyboardInterrupt):
        negotiator._start_followers(locked)
    later = call_of(negotiator)
    locked.followers.append(later)
    negotiator._start_followers(locked)
    assert later.decided()


def test_what_is_left_of_an_order_is_completed_before_the_next_one_begins(
    negotiator: Negotiator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of both go through one group: they have to come in one order on all ranks."""
    did: list[object] = []
    again = object()
    monkeypatch.setattr(negotiator._rounds, "unlock", lambda *_: (again, 7))
    monkeypatch.setattr(negotiator, "_follow", did.append)
    negotiator._unlock(locked_with(order=None, complete=did.append))
    assert did == [7, again]


def test_calls_may_come_while_an_order_is_completed() -> None:
    """`complete` has no lock: a call that it looks at lets another one in."""
    calls: dict[Any, Any] = {}

    class Call:
        def decided(self) -> bool:
            calls["allreduce", str(len(calls))] = self
            return False

    calls["allreduce", "x"] = Call()
    work = SimpleNamespace(done=lambda: True)
    session = SimpleNamespace(run=lambda *_, **__: work, submit=lambda *_, **__: work)
    order = LockedOrder([Batch((Request("barrier", "x", ""),), None, (("barrier", "x"),))])
    locked = Locked(cast(Group, SimpleNamespace(session=session)), order, calls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Buffer, "reduce", lambda *_, **__: work)
        locked.complete(1)
    assert len(locked.flights) == 1


def test_a_handler_may_wait_for_the_sum_that_its_thread_takes() -> None:
    """The handler runs as the result is taken from the buffer that several sums share."""
    taken: list[int] = []

    def take(*_: object) -> int:
        taken.append(1)
        if len(taken) == 1:
            assert shared.wait() == 2
        return len(taken)

    buffer = cast(Buffer, SimpleNamespace(take=take))
    shared = SharedSum(buffer, 0, cast(Negotiated, None), DONE)
    thread = threading.Thread(target=shared.wait, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is in a cycle of references stays."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_thread_that_ends_with_the_session_s_error_keeps_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: Negotiator) -> bool:
        raise PeerLost("rank 1 is gone", 1, "there")

    monkeypatch.setattr(Negotiator, "_work", lost)
    negotiator = negotiator_with(session)
    thread = threading.Thread(target=negotiator._serve)
    thread.start()
    thread.join()
    lives = weakref.ref(negotiator)
    del negotiator
    assert lives() is None


@pytest.mark.usefixtures("no_collector")
def test_a_run_that_was_broken_off_and_failed_keeps_nothing(session: Session) -> None:
    def await_run(_: Group) -> None:
        raise PeerLost("rank 1 is gone", 1, "there")

    buffer = cast(Buffer, SimpleNamespace(await_run=await_run))
    run = _BrokenOff(buffer, cast(Group, SimpleNamespace(session=session)))
    for _ in range(2):
        with pytest.raises(PeerLost):
            run.wait()
    lives = weakref.ref(run)
    del run
    assert lives() is None


def test_an_operation_of_the_program_s_own_thread_starts_once(negotiator: Negotiator) -> None:
    """Others wait for it amid its start: calls on the same memory, of a handler and of another thread."""
    starts: list[int] = []
    others = [threading.Thread(target=lambda: call.wait(), daemon=True) for _ in range(3)]

    def start(_: Group | None) -> Pending:
        starts.append(1)
        for other in others:
            other.start()
        with pytest.raises(
            RuntimeError, match="handler cannot wait for an operation while its thread starts"
        ):
            call.wait()
        return DONE

    call = call_of(negotiator, start)
    call.begin(negotiator._group, "", own=True)
    call.wait()
    for other in others:
        other.join(60)
        assert not other.is_alive()
    assert starts == [1]
