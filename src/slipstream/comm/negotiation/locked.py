"""Puts a locked order to work on one rank: launches batches, and takes what comes back. See `order`.

The negotiator's lock protects all of it, unless a method says otherwise. Batches are launched in whatever thread makes
the last call of one; a blocking call runs it there to its end, where nothing else is under way.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Key, Request
from slipstream.comm.negotiation.buffers import Buffer
from slipstream.comm.negotiation.messages import ENDLESS, UnderWay, only_joins
from slipstream.comm.negotiation.negotiated import Negotiated, abort_for, kept
from slipstream.comm.negotiation.order import Batch, LockedOrder

__all__ = ["Flight", "Locked"]

_PATIENCE = 0.02  # seconds for which the program waits for a call that waits for those before it in the order
_LONG_PATIENCE = 0.2  # seconds for which such a call waits where the program does not


class Flight:
    """A batch that has been launched. ``calls``: of its operations; none if this rank has raised the flag.

    ``endless``: this rank has joined, and waits for the others' next call as long as they go on without one.
    """

    __slots__ = ("batch", "buffer", "calls", "endless", "since", "work")

    def __init__(self, batch: Batch, calls: list[Negotiated], buffer: Buffer) -> None:
        self.batch = batch
        self.calls = calls
        self.buffer = buffer
        self.work: UnderWay | None = None
        self.endless = False
        self.since = time.monotonic()


class Locked:
    """One rank's way through a locked order. ``group``: of its own, for batches alone."""

    def __init__(self, group: Group, order: LockedOrder, calls: dict[Key, Negotiated]) -> None:
        self.order = order
        self.flights: deque[Flight] = deque()
        self.followers: deque[Negotiated] = deque()  # have passed their gates, in this order
        self.starter = 0  # the thread that starts followers; 0: none
        self.running: Flight | None = None  # a call runs it in its thread
        self.runner = 0  # that thread; 0: none
        self.group = group
        self._calls = calls
        self._held: dict[Key, Negotiated] = {}  # not launched, by their keys in the cycle
        self._buffers: dict[tuple[Key, ...], list[Buffer]] = {}  # that nothing uses
        self._held_since = 0.0
        self._awaited = False  # what is held
        self._reason = ""  # to deviate, once the flight that runs has come back

    def submit(self, call: Negotiated, sync: bool) -> Flight | None:
        """Takes a call; launches what can be. Returns a flight that the caller has to `run`, without the lock."""
        if self.order.over or self._reason:
            return None  # it is announced when the order has ended
        key = self.order.key(call.request)
        reason = self.order.call(call.request)
        if reason:
            self.deviate(reason)
            return None
        self._held[key] = call
        if sync and self.running is None and not self.flights and not self.followers and not self.starter:
            batch = self.order.ready()
            if batch is not None:
                self.running = self._prepare(batch)
                self.runner = threading.get_ident()
                return self.running
        self.launch()
        return None

    def take_alone(self, request: Request) -> Flight | None:
        """A flight to run by `Buffer.run_one`, if nothing is under way and this sum is next, alone.

        It has no calls: `land_alone` is quicker without. Who finds that it has to go another way gives it one.
        """
        if self._held or self._reason or self.running is not None:
            return None
        if self.flights or self.followers or self.starter:
            return None
        batch = self.order.take_alone(request)
        if batch is None:
            return None
        free = self._buffers.get(batch.keys)
        self.running = Flight(batch, [], free.pop() if free else _buffer_of(batch))
        self.runner = threading.get_ident()
        return self.running

    def land_alone(self, flight: Flight) -> None:
        """It has been run, and no rank has raised the flag."""
        self.running, self.runner = None, 0
        self.order.end(False)
        self._buffers.setdefault(flight.batch.keys, []).append(flight.buffer)
        if self._held or self._reason:  # others have called meanwhile
            self._go_on()

    def launch(self) -> None:
        """Launches all batches that can be."""
        before = self.order.launched
        while self.running is None and (batch := self.order.ready()) is not None:
            flight = self._prepare(batch)
            flight.work = flight.buffer.reduce(self.group, batch.label)
            self.flights.append(flight)
        held = bool(self.order.held())
        if not held or self.order.launched > before or not self._held_since:
            self._held_since = time.monotonic() if held else 0.0
            self._awaited = False

    def await_held(self) -> bool:
        """The program waits for something that may be held. Returns whether that is news."""
        news = not self._awaited and self._held_since > 0
        self._awaited = self._awaited or news
        return news

    def run(self, flight: Flight) -> None:
        """Runs what `submit` has returned. Without the lock; `landed` has to follow, whatever it raises."""
        flight.buffer.run(self.group, flight.batch.label)

    def landed(self, flight: Flight, whole: bool) -> None:
        """It has been run, or its call was broken off (then it goes on, and is waited for by others)."""
        self.running, self.runner = None, 0
        self._held_since = 0.0
        if whole:
            self._end(flight)
        else:
            flight.work = _BrokenOff(flight.buffer, self.group)
            self.flights.append(flight)
        self._go_on()

    def _go_on(self) -> None:
        if self._reason:
            self.deviate(self._reason)
        self.launch()

    def deviate(self, reason: str) -> None:
        """This rank cannot go on in this order."""
        if self.running is not None:
            self._reason = self._reason or reason
        elif self.order.deviate(reason):
            self._raise_flag(self.order.launched - 1)

    def complete(self, launched: int) -> None:
        """Takes part, with flags up, in what other ranks have launched: ``launched`` batches at most."""
        for number in range(self.order.launched, launched):
            self._raise_flag(number)

    def settle(self) -> None:
        """Takes what has come back."""
        while self.flights and not self.order.void:
            work = self.flights[0].work
            if work is None or not work.done():
                return
            work.wait()  # raises the session's error
            self._end(self.flights.popleft())

    def wait_left(self) -> float:
        """Seconds until this rank has waited long enough for a call of its own; endless if it need not wait.

        While something is under way it need not: that comes back, or the order ends.
        """
        if not self._held_since or self.flights or self.running is not None or self.order.over:
            return float("inf")
        patience = _PATIENCE if self._awaited else _LONG_PATIENCE
        return self._held_since + patience - time.monotonic()

    def busy(self) -> bool:
        """Whether something happens without a further call of this rank."""
        return bool(self.followers or self.waits())

    def waits(self) -> bool:
        """The same, but for what may start now."""
        return bool(self.flights or self._held_since or self.order.void)

    def _prepare(self, batch: Batch) -> Flight:
        calls = [self._held.pop(key) for key in batch.keys]
        free = self._buffers.setdefault(batch.keys, [])
        buffer = free.pop() if free else _buffer_of(batch)
        flight = Flight(batch, calls, buffer)
        if batch.sum is not None:
            try:
                buffer.pack(self.group, calls)
            except BaseException as error:
                if not isinstance(error, SlipstreamError):
                    abort_for(self.group, calls[0].request, error)
                raise
        for call in calls:
            call.starts()
        self.order.launch()
        return flight

    def _raise_flag(self, number: int) -> None:
        batch = self.order.batch(number)
        flight = Flight(batch, [], _buffer_of(batch))
        flight.buffer.raise_flag()
        calls = list(self._calls.items())  # `complete` has no lock, and the program may call meanwhile
        flight.endless = only_joins(key for key, one in calls if not one.decided())
        flight.work = flight.buffer.reduce(
            self.group, batch.label, timeout=ENDLESS if flight.endless else 0.0
        )
        self.flights.append(flight)

    def _end(self, flight: Flight) -> None:
        void = flight.buffer.is_flagged()
        self.order.end(void)
        if void:
            return
        if flight.batch.sum is None:
            self.followers.extend(flight.calls)
        else:
            flight.buffer.unpack(flight.calls)
            for call in flight.calls:
                self.forget(call)
        self._buffers[flight.batch.keys].append(flight.buffer)

    def abandon(self) -> None:
        """Nothing goes on: forgets the calls that have not ended, unless a thread starts them now."""
        self.running = None
        self._held.clear()
        self.flights.clear()
        if not self.starter:
            self.followers.clear()

    def forget(self, call: Negotiated) -> None:
        """It is known to be done, or to be one that no later call can be taken for."""
        if self._calls.get(call.key) is call:
            del self._calls[call.key]


def _buffer_of(batch: Batch) -> Buffer:
    parts = [one.sum for one in batch.requests if one.sum is not None] if batch.sum is not None else []
    return Buffer(parts, flagged=True)


class _BrokenOff:
    """A run that goes on without the call that began it."""

    def __init__(self, buffer: Buffer, group: Group) -> None:
        self._buffer, self._group = buffer, group
        self._done = False
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def wait(self, timeout: float | None = None) -> None:
        if not self._done:
            try:
                self._buffer.await_run(self._group)
                self._group.session.check()  # one that has failed awaits nothing: the sum may be none
            except SlipstreamError as error:
                self._error = kept(error)
            self._done = True
        if self._error is not None:
            raise kept(self._error)

    def entitle(self, title: str) -> None:
        """It has the title of the call that began it."""
