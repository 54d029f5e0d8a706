"""Starts operations in an order that the ranks of a group have agreed on.

A thread of each rank announces what its program has called, in rounds that all ranks take part in. A rank takes part as
long as it waits for an operation; without one its thread sleeps, and the others wait for it, as they have to. What all
ranks have announced the thread starts, in the order that `Agreement` says, on a group of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from slipstream._core import close_block, open_block
from slipstream.base import recording
from slipstream.base.dtypes import DType
from slipstream.base.errors import Aborted, Mismatch, PeerLost, SlipstreamError, Timeout
from slipstream.comm.collectives import addresses
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Agreement, Request

__all__ = ["Negotiated", "Pending", "forget", "negotiator_of"]

_SLOT = 512  # bytes of a rank's message in a round, with its length; longer ones come in a second step
_LENGTH = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02  # seconds between rounds in which nobody has announced anything
_WARN = 10.0  # seconds without an answer of all ranks
_WARN_AGAIN = 60.0
_LEAVE = 5.0  # seconds
_LOOK = 0.2
_MOST_SHOWN = 5  # operations in a text

_log = logging.getLogger("slipstream.negotiation")


class Pending(Protocol):
    """An operation that has been started."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> Any:
        """Waits for its end; returns the result, or raises its error."""


class Negotiated:
    """An operation that starts when all ranks have called it. The ranks' own errors do not stop the others'."""

    def __init__(self, request: Request, start: Callable[[Group], Pending]) -> None:
        self.request = request
        self._start = start
        self._decided = threading.Event()
        self._pending: Pending | None = None
        self._error: BaseException | None = None
        self.since = time.monotonic()
        self._called = time.monotonic_ns() if recording.recording() else 0

    def begin(self, group: Group, mismatch: str) -> None:
        """Starts it on ``group``, or fails it. An error that this rank alone has ends the session."""
        if self._called:
            kind, name = self.request.key
            recording.record("negotiation", name, self._called, time.monotonic_ns(), kind=kind)
        if mismatch:
            self.fail(Mismatch(mismatch))
            return
        try:
            self._pending = self._start(group)
            self._decided.set()
        except BaseException as error:
            if not isinstance(error, SlipstreamError):
                (kind, name), rank = self.request.key, group.native.ranks[group.rank]
                group.session.abort(
                    f"rank {rank} could not start {kind} {name!r}, which the other ranks have started "
                    f"({type(error).__name__}: {error})"
                )
            self.fail(error)

    def begin_alone(self, group: Group) -> None:
        """Starts it where there is nobody to agree with; raises what that raises."""
        self._pending = self._start(group)
        self._decided.set()

    def fail(self, error: BaseException) -> None:
        """It will not be started."""
        self._error = error
        self._decided.set()

    def decided(self) -> bool:
        """Whether it has been started, or has failed."""
        return self._decided.is_set()

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._decided.is_set() and (self._pending is None or self._pending.done())

    def wait(self) -> Any:
        """Waits until all ranks have called it, and for its end; returns its result.

        Raises Mismatch if the ranks have called it with different arguments, else what the operation raises. If a
        signal's handler raises an exception here, the operation goes on, and may be waited for again.
        """
        while not self._decided.wait(_LOOK):
            pass  # a signal that came just before the wait does not end it: its handler runs now
        if self._pending is None:
            assert self._error is not None
            raise self._error
        return self._pending.wait()


class _Negotiator:
    """The thread of one group on this rank."""

    def __init__(self, group: Group) -> None:
        self._group = group.beside("negotiation")
        self._limit = group.job.settings.timeout
        self._agreement = Agreement(group.native.ranks)
        self._changed = threading.Condition()
        self._calls: dict[tuple[str, str], Negotiated] = {}  # not known to be done
        self._open: dict[tuple[str, str], Negotiated] = {}  # announced and not decided; of the thread alone
        self._pause = 0.0  # seconds
        self._warn_at = 0.0
        self._stopped: BaseException | None = None
        self._thread: threading.Thread | None = None
        leave = weakref.WeakMethod(self.leave)  # a group may be forgotten before the job is left
        group.job.when_left(lambda: (leave() or _nothing)())

    def submit(self, request: Request, start: Callable[[Group], Pending]) -> Negotiated:
        """Has the operation started once all ranks have called it.

        ValueError while another of its kind and name is not done.
        """
        negotiated = Negotiated(request, start)
        with self._changed:
            before = self._calls.get(request.key)
            if before is not None and not before.done():
                raise ValueError(
                    f"Requested to {request.kind} a tensor with the same name as another tensor that is currently "
                    f"being processed: {request.name!r}. Synchronize the first, or use another name."
                )
            if self._group.size > 1 and self._stopped is None:
                if self._thread is None:
                    thread = threading.Thread(target=self._serve, name="slipstream negotiation", daemon=True)
                    thread.start()
                    self._thread = thread
                self._calls[request.key] = negotiated
                self._changed.notify()
                close_block(open_block(), True)  # whatever becomes of the call, the operation goes on
        if self._group.size == 1:
            negotiated.begin_alone(self._group)
        elif self._stopped is not None:
            negotiated.fail(_told(request, self._stopped))
        return negotiated

    def _serve(self) -> None:
        error: BaseException = Aborted("the job was left before all ranks had called it")
        try:
            while self._work():
                pass
        except SlipstreamError as found:
            error = found
        except BaseException as found:  # no memory, say: the other ranks would wait for this one
            error = found
            with contextlib.suppress(SlipstreamError):
                rank = self._group.native.ranks[self._group.rank]
                self._group.session.abort(f"rank {rank} cannot go on ({type(found).__name__}: {found})")
        with self._changed:
            self._stopped = self._stopped or error
            rest = [one for one in self._calls.values() if not one.decided()]
            self._calls.clear()
        for one in rest:
            one.fail(_told(one.request, self._stopped))

    def _new(self) -> list[Negotiated]:
        return [one for key, one in self._calls.items() if not one.decided() and key not in self._open]

    def _work(self) -> bool:
        """One round. False: this rank has left the job."""
        with self._changed:
            self._calls = {key: one for key, one in self._calls.items() if not one.done()}
            if not self._open:
                self._changed.wait_for(lambda: self._stopped or self._new())
            elif self._pause:
                self._changed.wait_for(lambda: self._stopped or self._new(), self._pause)
            if self._stopped:
                return False
            new = self._new()
        if not self._open:
            self._warn_at = time.monotonic() + _WARN
        for one in new:
            self._open[one.request.key] = one
        messages = self._exchange(self._agreement.encode([one.request for one in new]))
        decisions = self._agreement.decide(messages)
        # Each rank waits for something that another one has not called: they look again, less and less often.
        quiet = all(message == b"[]" for message in messages)
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE) if quiet else 0.0
        for decision in decisions:
            self._open.pop(decision.key).begin(self._group, decision.mismatch)
        if quiet:
            self._look_at_the_time()
        return True

    def _look_at_the_time(self) -> None:
        """Warns of operations that other ranks do not call although they call others, and ends the session at last."""
        now = time.monotonic()
        since = min((one.since for one in self._open.values()), default=now)
        if now - since > self._limit:
            text = f"Timed out after {now - since:.0f} s (SLIPSTREAM_TIMEOUT sets the limit): {self._waits()}"
            self._group.session.abort(text)
            raise Timeout(text)
        if self._open and now >= self._warn_at:
            self._warn_at = now + _WARN_AGAIN
            _log.warning("%s, for %.0f s now", self._waits(), now - since)

    def _exchange(self, mine: bytes) -> list[bytes]:
        """Every rank's message, in order of rank."""
        slots = self._gather(len(mine).to_bytes(_LENGTH, "little") + mine[: _SLOT - _LENGTH], _SLOT)
        lengths = [int.from_bytes(slot[:_LENGTH], "little") for slot in slots]
        if max(lengths) > _SLOT - _LENGTH:
            slots = self._gather(bytes(_LENGTH) + mine, max(lengths) + _LENGTH)
        return [slot[_LENGTH : _LENGTH + length] for slot, length in zip(slots, lengths, strict=True)]

    def _gather(self, mine: bytes, nbytes: int) -> list[bytes]:
        size = self._group.size
        source, target = np.zeros(nbytes, np.uint8), np.empty(size * nbytes, np.uint8)
        source[: len(mine)] = np.frombuffer(mine, np.uint8)
        memory = source.ctypes.data, target.ctypes.data
        work = addresses.all_gather(
            self._group, *memory, [nbytes] * size, DType.U8, name="negotiation", keep=(source, target)
        )
        seconds = _WARN
        while True:
            try:
                work.wait(seconds)
                break
            except Timeout as late:
                if work.done():
                    work.wait()  # it has ended meanwhile, or by its own limit
                    break
                _log.warning("%s: %s", self._waits(), late)
                seconds = _WARN_AGAIN
        text = target.tobytes()
        return [text[at : at + nbytes] for at in range(0, len(text), nbytes)]

    def _waits(self) -> str:
        """Which operations wait for which ranks."""
        missing = self._agreement.missing()
        keys = [*missing, *(key for key in self._open if key not in missing)]
        shown = [_of(key, missing.get(key, [])) for key in keys[:_MOST_SHOWN]]
        more = f" and {len(keys) - _MOST_SHOWN} more" if len(keys) > _MOST_SHOWN else ""
        return f"not all ranks have called {', '.join(shown)}{more}"

    def leave(self) -> None:
        """Ends the thread, unless it is this one: the interpreter's end would find it with objects of a framework."""
        with self._changed:
            self._stopped = self._stopped or Aborted("the job was left before all ranks had called it")
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LEAVE)  # the session is closed: it waits for nothing any more


def _told(request: Request, error: BaseException) -> BaseException:
    """The error that has ended the rounds, as one of the operation."""
    if not isinstance(error, SlipstreamError):
        return error
    text = f"{request.kind} {request.name!r} waits for all ranks to call it: {error}"
    return PeerLost(text, error.rank, error.host) if isinstance(error, PeerLost) else type(error)(text)


def _of(key: tuple[str, str], missing: Sequence[int]) -> str:
    return f"{key[0]} {key[1]!r}" + (f" (missing: {', '.join(map(str, missing))})" if missing else "")


_negotiators: weakref.WeakKeyDictionary[Group, _Negotiator] = weakref.WeakKeyDictionary()
_lock = threading.RLock()  # a signal's handler may call an operation, too


def _nothing() -> None:
    pass


def negotiator_of(group: Group) -> _Negotiator:
    """The one of a group; made at the first call."""
    with _lock:
        found = _negotiators.get(group)
        if found is None:
            found = _negotiators[group] = _Negotiator(group)
        return found


def forget(group: Group) -> None:
    """Ends the negotiator of a group that is not used any more."""
    with _lock:
        found = _negotiators.pop(group, None)
    if found is not None:
        found.leave()


def _forget_after_fork() -> None:
    global _lock, _negotiators
    _lock = threading.RLock()
    _negotiators = weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_forget_after_fork)
