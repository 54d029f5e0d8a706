"""One operation, from its call to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from slipstream._core import begun
from slipstream.base import recording
from slipstream.base.errors import Aborted, Mismatch, SlipstreamError
from slipstream.base.spans import format_spans
from slipstream.comm.membership.failures import retold
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Key, Request

__all__ = [
    "DONE",
    "Negotiated",
    "Part",
    "Pending",
    "PlainPart",
    "Start",
    "abort_for",
    "broken_off",
    "kept",
    "name_taken",
    "told",
]


class Pending(Protocol):
    """An operation that has been started."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> Any:
        """Waits for its end; returns the result, or raises its error."""


Start = Callable[[Group | None], Pending]
"""Starts an operation on this group; None: on one of its own choice, the same on all ranks."""


class Part(Protocol):
    """What an all-reduce has in a buffer that it shares with others. Nothing is changed before `unpack`."""

    def pack(self, group: Group, address: int) -> None:
        """Copies the input there."""

    def unpack(self, address: int) -> Any:
        """Takes the sum from there; returns the result."""


class PlainPart(Part, Protocol):
    """One whose input lies in one piece, and whose result is new: both can be copied without it."""

    def source(self, group: Group) -> int:
        """The address of the input, once no earlier operation writes to it any more."""

    def target(self) -> tuple[Any, int]:
        """Room for the result, which becomes it, and its address."""


class _Done:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


DONE: Pending = _Done()
"""What has nothing to wait for."""


class _Own:
    """An operation that starts where it is waited for first: in the thread that has called it.

    Later calls on its memory wait for it, too: other threads', and those of a signal's handler, amid the start.
    """

    def __init__(self, start: Start, group: Group, request: Request) -> None:
        self._start, self._group, self._request = start, group, request
        self._pending: Pending | None = None
        self._lock = threading.RLock()
        self._starts = False  # now

    def done(self) -> bool:
        return self._pending is not None and self._pending.done()

    def wait(self) -> Any:
        with self._lock:
            pending = self._pending or self._started()
        return pending.wait()

    def _started(self) -> Pending:
        if self._starts:
            raise RuntimeError("a signal's handler cannot wait for an operation while its thread starts that")
        before = begun()
        self._starts = True
        try:
            self._pending = self._start(None)
        except BaseException as error:
            if begun() == before and not isinstance(error, SlipstreamError):
                abort_for(self._group, self._request, error)  # the others wait for it
            self._pending = DONE
            raise
        finally:
            self._starts = False
        return self._pending


class _Owner(Protocol):
    waited: bool

    def look(self) -> None:
        """Takes note of what has ended."""

    def await_decision(self, call: Negotiated) -> None:
        """Waits until `decided`."""


class Negotiated:
    """An operation that starts when all ranks have called it. The ranks' own errors do not stop the others'."""

    def __init__(
        self, owner: _Owner, request: Request, start: Start, part: Part | None, key: Key = ("", "")
    ) -> None:
        self.request = request
        self.key = key if key[1] else request.key
        self.announced = False
        self.part = part
        self.pause = False  # this rank waited between the call before and this one
        self.since = time.monotonic()
        self._called = time.monotonic_ns() if recording.recording() else 0
        self._owner = owner
        self._start = start
        self._decided = False
        self._wake = threading.Lock()  # free once it is decided
        self._wake.acquire()
        self._pending: Pending = DONE
        self._result: Any = None
        self._error: BaseException | None = None

    def begin(self, group: Group, mismatch: str, own: bool = False) -> None:
        """Starts it on ``group``, or fails it. ``own``: lets the program's thread start it.

        What this rank alone raises, or a signal's handler, ends the session and goes on: the caller fails the call.
        """
        self.starts()
        if mismatch:
            self.fail(Mismatch(mismatch))
            return
        if own:
            self.go_on(_Own(self._start, group, self.request))
            return
        try:
            self.go_on(self._start(group))
        except SlipstreamError as error:
            self.fail(error)
        except BaseException as error:
            abort_for(group, self.request, error)
            raise

    def starts(self) -> None:
        """Shows in the timeline how long it has waited, in Horovod's words."""
        if self._called:
            name = ".".join(filter(None, self.request.key))
            phase = f"NEGOTIATE_{self.request.kind.upper()}"
            recording.record("negotiation", name, self._called, time.monotonic_ns(), phase=phase)
            self._called = 0

    def begin_alone(self, group: Group) -> None:
        """Starts it where there is nobody to agree with; raises what that raises."""
        self.go_on(self._start(group))

    def go_on(self, pending: Pending) -> None:
        """It has been started."""
        self._pending = pending
        self._decide()

    def give(self, result: Any) -> None:
        """It is done."""
        self._result = result
        self._decide()

    def fail(self, error: BaseException) -> None:
        """It will not be started."""
        self._error = kept(error)
        self._decide()

    def _decide(self) -> None:
        if not self._decided:
            self._decided = True
            self._wake.release()

    def decided(self) -> bool:
        """Whether it has been started, or has failed."""
        return self._decided

    def sleep(self, seconds: float) -> None:
        """Returns when it is decided, or so much later."""
        if self._wake.acquire(timeout=seconds):
            self._wake.release()

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        if not self._decided:
            self._owner.look()
        return self._decided and self._pending.done()

    def wait(self) -> Any:
        """Waits until all ranks have called it, and for its end; returns its result.

        Raises Mismatch if the ranks have called it with different arguments, else what the operation raises. If a
        signal's handler raises an exception here, the operation goes on, and may be waited for again.
        """
        self._owner.waited = True
        if not self._decided:
            self._owner.await_decision(self)
        if self._error is not None:
            raise kept(self._error)
        return self._result if self._pending is DONE else self._pending.wait()


def abort_for(group: Group, request: Request, error: BaseException) -> None:
    """Ends the session: this rank has an error of its own in what the others have started."""
    group.session.abort(str(broken_off(group, request, error)))


def broken_off(group: Group, request: Request, error: BaseException) -> Aborted:
    """What `abort_for` says, as an error of the operation."""
    rank = group.native.ranks[group.rank]
    return Aborted(
        f"rank {rank} could not start {request.title}, which the other ranks have started "
        f"({type(error).__name__}: {error})"
    )


def name_taken(request: Request, before: Negotiated | None, rank: int, others: Sequence[int]) -> ValueError:
    """Why ``rank`` cannot call it: it has called ``before``, of the same kind and name, which is not over.

    None: that one is being run in another thread. ``others``: ranks that may not have called it.
    """
    since = "" if before is None else f" {time.monotonic() - before.since:.1f} s ago"
    if before is not None and before.done():
        state = "has not synchronized it"
    elif before is None or before.decided() or not others:
        state = "its communication has not ended"
    elif len(others) == 1:
        state = f"rank {others[0]} has not called it yet"
    else:
        state = f"not all of ranks {format_spans(others)} have called it yet"
    return ValueError(
        f"Requested to {request.kind} a tensor with the same name as another tensor that is currently being "
        f"processed: {request.name!r}. Rank {rank} called the first{since}, and {state}. Synchronize the first, or "
        f"use another name. If the first is of a step that failed on rank {rank} while other ranks went on, end the "
        "program on all ranks"
    )


def told(request: Request, error: BaseException) -> BaseException:
    """The error that has ended the negotiation, as one of the operation."""
    if not isinstance(error, SlipstreamError):
        return error
    return retold(error, f"{request.title} waits for all ranks to call it: {error}")


def kept(error: BaseException) -> BaseException:
    """An error as it may be kept: a copy, if it is one of slipstream's.

    Who catches it, or one before it, has frames in its traceback that know who keeps it. It would be in a cycle
    of references, and the job's files with it.
    """
    return retold(error, str(error)) if isinstance(error, SlipstreamError) else error
