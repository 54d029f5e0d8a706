"""What the negotiator does amid interrupts, without other ranks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slipstream.base.errors import Aborted, PeerLost
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.locked import Locked
from slipstream.comm.negotiation.negotiated import DONE, Negotiated, Pending
from slipstream.comm.negotiation.negotiator import Negotiator


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
    assert waits == [None]
