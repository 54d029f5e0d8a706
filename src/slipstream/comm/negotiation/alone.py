"""Sums that a locked order has next, alone: they run without what others would have to know of them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from slipstream._core import begun
from slipstream.base import recording
from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Key, Request, unnamed
from slipstream.comm.negotiation.guarded import Guarded
from slipstream.comm.negotiation.locked import Flight, Locked
from slipstream.comm.negotiation.negotiated import Negotiated, Part, PlainPart, Start, abort_for, told

__all__ = ["Alone"]


class Alone(ABC):
    """The part of a negotiator that runs such sums. What it declares, the negotiator has."""

    _group: Group
    _guarded: Guarded
    _lock: Any
    _changed: threading.Condition
    _calls: dict[Key, Negotiated]
    _alone: Key | None  # what runs alone, if it has a name: the calls do not have it
    _numbers: Iterator[int]
    _locked: Locked | None
    _amid: list[Negotiated]
    _stopped: BaseException | None
    joined: Negotiated | None
    waited: bool

    @abstractmethod
    def submit(
        self, request: Request, start: Start, part: Part | None = None, sync: bool = False
    ) -> Negotiated:
        """Has an operation started once all ranks have called it."""

    @abstractmethod
    def look(self) -> None:
        """Takes note of what has ended."""

    @abstractmethod
    def await_decision(self, call: Negotiated) -> None:
        """Waits until it is decided."""

    @abstractmethod
    def _landed(self, locked: Locked, flight: Flight, whole: bool) -> None: ...

    @abstractmethod
    def _stop(self, error: BaseException) -> None: ...

    def run_now(self, request: Request, part: PlainPart, start: Start) -> Any:
        """`submit` with ``sync``, and the result: quicker where a locked order has this sum next, alone."""
        locked = self._locked
        if (
            locked is not None
            and locked.order.is_next_alone(request)
            and locked.runner != threading.get_ident()  # then this is a signal's handler amid such a sum
            and (self.joined is None or self.joined.decided())
            and not recording.recording()
        ):
            key = request.key if request.has_name else None
            source = _source_of(request, part, locked.group)
            try:
                with self._lock:
                    inside = self._guarded.inside
                    flight = None if inside else self._guarded.run(self._take_alone, locked, request, key)
                if flight is not None:
                    return self._run_alone(
                        locked,
                        flight,
                        part,
                        source,
                        lambda: Negotiated(self, request, start, part, key or unnamed(next(self._numbers))),
                    )
            except BaseException as error:
                self._miss(None, error)
                raise
        return self.submit(request, start, part, sync=True).wait()

    def _take_alone(self, locked: Locked, request: Request, key: Key | None) -> Flight | None:
        if self._stopped is not None or locked is not self._locked or key in self._calls:
            return None
        flight = locked.take_alone(request)
        if flight is not None:
            self._alone = key
        return flight

    def _run_alone(
        self, locked: Locked, flight: Flight, part: PlainPart, source: int, make: Callable[[], Negotiated]
    ) -> Any:
        """Runs a flight of `Locked.take_alone`; makes its call, by ``make``, where others have to know of it."""
        before = begun()
        try:
            result = flight.buffer.run_one(locked.group, flight.batch.label, part, source)
            if result is not None:
                self._guarded.run(self._land_alone, locked, flight)
                return result
            call = self._known(flight, make)
            self._guarded.run(self._landed, locked, flight, True)  # the order ends with it
        except SlipstreamError as error:
            call = self._known(flight, make)
            self._guarded.run(self._stop, error)
        except BaseException as error:
            if locked.running is flight:
                self._known(flight, make)
                if begun() == before:  # the others wait for it
                    abort_for(self._group, flight.batch.requests[0], error)
                if self._stopped is None:
                    self._guarded.run(self._landed, locked, flight, False)
            raise
        return call.wait()

    def _known(self, flight: Flight, make: Callable[[], Negotiated]) -> Negotiated:
        with self._lock:
            if not flight.calls:  # a signal's handler may have raised since: one call has one number
                flight.calls = [make()]
            call = flight.calls[0]
            self._calls[call.key] = call
            self._alone = None
        return call

    def _land_alone(self, locked: Locked, flight: Flight) -> None:
        locked.land_alone(flight)
        self._alone = None
        if locked.waits() or self._amid:
            self._changed.notify()

    def _miss(self, call: Negotiated | None, error: BaseException) -> None:
        """A call was broken off. The batch that it was to run, if it did not come to that, nobody else runs.

        None: it was in `run_now`, and so are its batch's calls. If the session has failed before, that stands.
        """
        with self._lock:
            locked = self._locked
            running = None if locked is None else locked.running
            if locked is None or running is None:
                return
            if call in running.calls or (call is None and locked.runner == threading.get_ident()):
                self._guarded.end(error)


def _source_of(request: Request, part: PlainPart, group: Group) -> int:
    try:
        return part.source(group)
    except SlipstreamError as error:
        raise told(request, error) from None
