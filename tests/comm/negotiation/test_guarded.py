"""The lock of the negotiator: who is in a step of it, and what becomes of a step that is broken off."""

from __future__ import annotations

import queue
import sys
import threading
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from slipstream.base.errors import Aborted, Mismatch, SlipstreamError
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation import guarded as module
from slipstream.comm.negotiation.guarded import Guarded


def guarded_with(stops: list[BaseException], aborts: list[str]) -> Guarded:
    native, session = SimpleNamespace(ranks=[3]), SimpleNamespace(abort=aborts.append)
    return Guarded(cast(Group, SimpleNamespace(native=native, session=session, rank=0)), stops.append)


def test_a_step_of_another_thread_is_at_no_moment_mine() -> None:
    """The other thread stops at each line, and this one looks."""
    guarded = guarded_with([], [])
    guarded.run(lambda: None)  # this thread has been in one before
    asks: queue.SimpleQueue[bool] = queue.SimpleQueue()
    answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
    found: list[bool] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        asks.put(True)
        found.append(answers.get(timeout=60))
        return trace

    def other() -> None:
        sys.settrace(trace)
        try:
            guarded.run(lambda: guarded.wait(0.001))
        finally:
            sys.settrace(None)
            asks.put(False)

    thread = threading.Thread(target=other)
    thread.start()
    while asks.get(timeout=60):
        answers.put(guarded.is_mine())
    thread.join()
    assert len(found) > 10
    assert not any(found)


def test_a_step_is_its_threads_own() -> None:
    guarded = guarded_with([], [])
    assert guarded.run(guarded.is_mine)

    def step() -> bool:
        guarded.wait(0.001)
        return guarded.is_mine()

    assert guarded.run(step), "again, after it has waited"
    assert not guarded.is_mine()
    assert not guarded.inside


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no")])
def test_what_breaks_a_step_off_ends_the_session_and_stops_the_rest(error: BaseException) -> None:
    stops: list[BaseException] = []
    aborts: list[str] = []
    guarded = guarded_with(stops, aborts)

    def step() -> None:
        raise error

    with pytest.raises(type(error)):
        guarded.run(step)
    assert "rank 3 was interrupted as it started an operation" in aborts[0]
    assert isinstance(stops[0], Aborted)
    assert str(stops[0]) == aborts[0]
    assert not guarded.inside


def test_an_error_of_the_session_goes_on_alone() -> None:
    stops: list[BaseException] = []
    guarded = guarded_with(stops, [])

    def step() -> None:
        raise Mismatch("as such")

    with pytest.raises(SlipstreamError, match="as such"):
        guarded.run(step)
    assert not stops
