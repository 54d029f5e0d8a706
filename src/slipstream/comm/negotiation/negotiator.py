"""Starts operations in an order that the ranks of a group have agreed on.

A thread of each rank announces what its program has called, in rounds that all ranks take part in. A rank takes part as
long as it waits for an operation; without one its thread sleeps, and the others wait for it, as they have to. What all
ranks have announced the thread starts, in the order that `Agreement` says, on a group of its own. Small sums that are
decided in one round travel together.

Ranks that call the same operations again and again lock their order (`order`): no rounds, and small sums start in the
calling thread. The thread then only looks after what nobody waits for.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from slipstream._core import begun, close_block, open_block, wait_in_background
from slipstream.base.errors import Aborted, SlipstreamError
from slipstream.base.weak import weakly
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import JOIN, Key, Request, unnamed
from slipstream.comm.negotiation.alone import Alone
from slipstream.comm.negotiation.guarded import Guarded
from slipstream.comm.negotiation.locked import Flight, Locked
from slipstream.comm.negotiation.messages import await_others
from slipstream.comm.negotiation.negotiated import (
    DONE,
    Negotiated,
    Part,
    Start,
    abort_for,
    broken_off,
    kept,
    name_taken,
    told,
)
from slipstream.comm.negotiation.order import LockedOrder
from slipstream.comm.negotiation.rounds import Rounds, TakePart, listed

__all__ = ["Negotiator", "forget", "negotiator_of"]

_LEAVE = 5.0  # seconds
_LOOK = 0.2
_NAP = 0.005  # seconds that a caller has to wait for its operation before the thread does
_GAP = 0.002  # seconds between two calls: they do not wait for each other


class Negotiator(Alone):
    """The operations of one group on this rank."""

    def __init__(self, group: Group) -> None:
        self._group = group.beside("negotiation")
        self._batches = group.beside("the locked order")
        # What it owns calls it by weak references: in a cycle it would keep the job's files after the end of the job.
        self._guarded = Guarded(self._group, weakly(self._stop))
        self._lock, self._changed = self._guarded.lock, self._guarded.changed
        self._calls: dict[Key, Negotiated] = {}  # not known to be done
        self._alone: Key | None = None
        self._numbers = itertools.count()  # of this rank's calls without a name
        self._rounds = Rounds(self._group, weakly(self._begin))  # of the thread alone
        self._locked: Locked | None = None
        self._amid: list[Negotiated] = []  # called by signal handlers, amid another call
        self._sleeps = False  # the thread, until something happens
        self._awaits_starter = False  # the thread, until another one has started what is next
        self.joined: Negotiated | None = None  # this rank's latest `join`
        self.waited = False  # the program, since its latest call
        self._latest = 0.0  # when that was
        self._stopped: BaseException | None = None
        self._thread: threading.Thread | None = None
        group.job.when_left(weakly(self.leave))  # a group may be forgotten before the job is left

    @property
    def rounds(self) -> int:
        """How many rounds there have been."""
        return self._rounds.count

    @property
    def helped(self) -> int:
        """In how many operations of others this rank took part, as it had joined."""
        return self._rounds.helped

    @property
    def locked(self) -> bool:
        """Whether operations start in a locked order."""
        return self._locked is not None

    def submit(
        self,
        request: Request,
        start: Start,
        part: Part | None = None,
        sync: bool = False,
    ) -> Negotiated:
        """Has the operation started once all ranks have called it.

        ``start`` starts it alone; ``part`` is its part of a buffer, if ``request`` has a sum. ``sync``: the caller
        waits for it at once, and it may be run in here. ValueError while another of its kind and name is not done;
        RuntimeError while this rank has joined: the others go on without it.
        """
        _check_not_joined(self._group, self.joined, request)
        key = request.key if request.has_name else unnamed(next(self._numbers))
        call = Negotiated(self, request, start, part, key)
        before = self._calls.get(key)
        if key == self._alone or (before is not None and not before.done()):
            self._group.session.check()  # has it failed, the one before does not end by itself
            raise self.name_taken(request, before)
        if self._group.size == 1:
            call.begin_alone(self._group)
            return call
        try:
            flight = self._take(call, sync)
            if flight is not None:
                self._run(flight)
        except BaseException as error:
            self._miss(call, error)
            raise
        return call

    def name_taken(self, request: Request, before: Negotiated | None) -> ValueError:
        """See `negotiated.name_taken`."""
        ranks = self._group.native.ranks
        rank = ranks[self._group.rank]
        others = self._rounds.lacking(request.key) or ranks
        return name_taken(request, before, rank, [one for one in others if one != rank])

    def join(self, take_part: TakePart) -> Negotiated:
        """Takes part, by ``take_part``, in whatever the other ranks call. Done when all ranks have called this."""
        self._rounds.take_part = take_part
        self.joined = self.submit(Request(JOIN, "", "no more batches"), lambda _: DONE)
        return self.joined

    def _take(self, call: Negotiated, sync: bool) -> Flight | None:
        with self._lock:
            if not self._guarded.inside:
                return self._guarded.run(self._submit, call, sync)
            self._amid.append(call)
            self._calls[call.key] = call
            close_block(open_block(), True)
            self._changed.notify_all()
            return None

    def _submit(self, call: Negotiated, sync: bool) -> Flight | None:
        request = call.request
        if self._stopped is not None:
            call.fail(told(request, self._stopped))
            return None
        if self._thread is None:
            self._thread = _started(self._serve)
        self._calls[call.key] = call
        if not request.own:
            close_block(open_block(), True)  # whatever becomes of the call, the operation goes on
        locked, flight = self._locked, None
        if locked is not None:
            try:
                flight = locked.submit(call, sync)
            except SlipstreamError as error:
                self._stop(error)
        else:
            call.pause = self.waited or call.since - self._latest > _GAP
            self.waited, self._latest = False, call.since
        if self._sleeps and (locked is None or locked.busy()):
            self._changed.notify()
        return flight

    def _run(self, flight: Flight) -> None:
        """Runs a batch in this thread; what it was the gate of starts here, too: to wake the other one takes longer."""
        locked = self._locked
        assert locked is not None
        try:
            self._run_batch(locked, flight)
            self._start_followers(locked)
        finally:
            if locked.followers:  # a signal's handler has raised
                with self._lock:
                    self._changed.notify()

    def _run_batch(self, locked: Locked, flight: Flight) -> None:
        whole, before = False, begun()
        try:
            locked.run(flight)
            whole = True
        except SlipstreamError as error:
            self._guarded.run(self._stop, error)
            return
        except BaseException as error:
            if begun() == before:  # the others wait for it
                abort_for(self._group, flight.batch.requests[0], error)
            raise
        finally:
            if self._stopped is None:
                self._guarded.run(self._landed, locked, flight, whole)

    def _landed(self, locked: Locked, flight: Flight, whole: bool) -> None:
        try:
            locked.landed(flight, whole)
        except SlipstreamError as error:
            self._stop(error)
        if locked.waits() or self._amid:
            self._changed.notify()

    def look(self) -> None:
        """Takes note of what has ended."""
        with self._lock:
            if self._locked is not None and not self._guarded.inside:
                self._guarded.run(self._settle, self._locked)

    def _settle(self, locked: Locked) -> None:
        try:
            locked.settle()
        except SlipstreamError as error:
            self._stop(error)
        if self._sleeps and locked.busy():
            self._changed.notify()

    def await_decision(self, call: Negotiated) -> None:
        """Waits until it is decided; takes what comes back before it."""
        locked = self._locked
        if self._guarded.is_mine() or (locked and threading.get_ident() in (locked.runner, locked.starter)):
            raise RuntimeError(
                "a signal's handler cannot wait for an operation while the program starts another one"
            )
        while not call.decided():
            locked = self._locked
            work = None
            if locked is not None and not locked.order.over:
                with contextlib.suppress(IndexError):  # another thread may have taken it
                    work = locked.flights[0].work
            if locked is None or work is None:
                if locked is not None:
                    self._start_followers(locked)
                    with self._lock:
                        if locked.await_held():
                            self._changed.notify_all()
                if not call.decided():
                    since = time.monotonic()
                    # A signal that came just before does not end this: its handler runs now.
                    call.sleep(_LOOK)
                    self._group.session.add_wait(time.monotonic() - since)
                    self._check()
                continue
            with contextlib.suppress(SlipstreamError):  # `look` finds it
                work.wait()
            self.look()
            self._start_followers(locked)

    def _check(self) -> None:
        """Stops if the session has failed: the thread may be unable to say so."""
        try:
            self._group.session.check()
        except SlipstreamError as error:
            with self._lock:
                self._stop(error)

    def _start_followers(self, locked: Locked) -> None:
        """Starts what has passed its gate, unless another thread is at it."""
        me = threading.get_ident()
        try:
            with self._lock:
                if locked.starter or not locked.followers:
                    return
                locked.starter = me
            while locked.followers:
                call = locked.followers[0]
                if not call.decided():  # the one before this may have been broken off as it came to its end
                    self._begin(call, "", call.request.own)
                with self._lock:
                    if not call.request.has_name:
                        locked.forget(call)
                    locked.followers.popleft()  # not before: the others wait for it
        finally:
            if locked.starter == me:
                locked.starter = 0  # before all else: a signal's handler may raise in what follows
                with self._lock:
                    if self._awaits_starter:
                        self._changed.notify_all()

    def _begin(self, call: Negotiated, mismatch: str = "", own: bool = False) -> None:
        try:
            call.begin(self._group, mismatch, own)
        except BaseException as error:
            if threading.current_thread() is self._thread:
                call.fail(error)  # who waits for the call has to see it
                return
            # The error itself goes on from here, once.
            call.fail(broken_off(self._group, call.request, error))
            raise

    def _serve(self) -> None:
        wait_in_background()  # for other ranks: a program waits where it waits for its operation
        error: BaseException = Aborted("the job was left before all ranks had called it")
        try:
            while self._watch() if self._locked is not None else self._work():
                pass
        except SlipstreamError as found:
            error = kept(found)
        except BaseException as found:  # no memory, say: the other ranks would wait for this one
            error = found
            with contextlib.suppress(SlipstreamError):
                rank = self._group.native.ranks[self._group.rank]
                self._group.session.abort(f"rank {rank} cannot go on ({type(found).__name__}: {found})")
        with self._changed:
            self._stop(error)
            self._rounds.open.clear()  # calls know this object, which would be in a cycle of references
            if self._locked is not None:
                self._locked.abandon()

    def _stop(self, error: BaseException) -> None:
        """No operation starts any more."""
        self._stopped = self._stopped or kept(error)
        rest = [one for one in self._calls.values() if not one.decided()]
        self._calls.clear()
        for one in rest:
            one.fail(told(one.request, self._stopped))
        self._changed.notify_all()

    # ---- rounds

    def _new(self) -> list[Negotiated]:
        return [one for one in self._calls.values() if not one.decided() and not one.announced]

    def _sleep(self, until: Callable[[], Any], seconds: float | None = None) -> None:
        self._sleeps = True
        try:
            self._changed.wait_for(until, seconds)
        finally:
            self._sleeps = False

    def _work(self) -> bool:
        """One round. False: this rank has left the job."""
        with self._changed:
            self._calls = {key: one for key, one in self._calls.items() if not _over(one)}
            self._amid.clear()
            if not self._rounds.open:
                self._sleep(lambda: self._stopped or self._new())
            elif self._rounds.pause:
                self._sleep(lambda: self._stopped or self._new(), self._rounds.pause)
            if self._stopped:
                return False
            new = self._new()
        self._follow(self._rounds.run(new))
        return True

    def _follow(self, order: LockedOrder | None) -> None:
        if order is not None:
            self._guarded.run(self._lock_in, order)

    def _lock_in(self, order: LockedOrder) -> None:
        self._amid.clear()
        self._locked = Locked(self._batches, order, self._calls)
        for call in [one for one in self._calls.values() if not one.decided()]:
            self._locked.submit(call, sync=False)

    # ---- a locked order

    def _watch(self) -> bool:
        """Looks after a locked order for a while. False: this rank has left the job."""
        locked = self._locked
        assert locked is not None
        flight = self._guarded.run(self._look_after, locked)
        if self._stopped:
            return False
        if flight is not None and flight.work is not None:
            await_others(flight.work, partial(self._title, flight), flight.endless)
        elif locked.order.void:
            self._unlock(locked)
        else:
            self._start_followers(locked)
        return True

    def _title(self, flight: Flight) -> str:
        """What a flight is for; that of one with the flag up is what this rank has called instead."""
        instead = [one.request.title for one in list(self._calls.values()) if not one.decided()]
        return listed(instead) if instead and not flight.calls else flight.batch.label

    def _look_after(self, locked: Locked) -> Flight | None:
        """What is to be done with the lock held; returns what has to be awaited without it."""
        if self._stopped:
            return None
        for call in self._amid:
            locked.submit(call, sync=False)
        self._amid.clear()
        self._settle(locked)
        left = locked.wait_left()
        if left <= 0:
            locked.deviate(
                f"waited for {locked.order.lacks()}, which comes first, "
                f"with {listed(locked.order.titles(locked.order.held()))}"
            )
        elif self._stopped:
            return None
        elif locked.starter:  # what it starts is next
            self._await_starter(min(left, _LOOK))
        elif not (locked.followers or locked.order.void):
            return self._await_something(locked, left)
        return None

    def _await_starter(self, seconds: float) -> None:
        """Looks now and then: where a signal's handler raises in the other thread, that says nothing."""
        self._awaits_starter = True
        try:
            self._guarded.wait(seconds)
        finally:
            self._awaits_starter = False

    def _await_something(self, locked: Locked, left: float) -> Flight | None:
        """Sleeps until there may be something to do; or returns what nobody may be waiting for."""
        flight = locked.flights[0] if locked.flights else None
        prompt = flight is not None and (flight.batch.sum is None or locked.order.over)
        if flight is not None and (prompt or time.monotonic() - flight.since > _NAP):
            return flight
        seconds = _NAP if flight is not None else None if left == float("inf") else left
        self._sleeps = flight is None
        try:
            self._guarded.wait(seconds)
        finally:
            self._sleeps = False
        return None

    def _unlock(self, locked: Locked) -> None:
        """All ranks come here at the same batch, the first that is void."""
        with self._changed:
            while locked.starter or locked.followers:
                if not locked.starter:
                    self._changed.release()
                    try:
                        self._start_followers(locked)
                    finally:
                        self._changed.acquire()
                else:
                    self._awaits_starter = True
                    self._changed.wait(_LOOK)
                    self._awaits_starter = False
            self._locked = None
            self._amid.clear()
            new = self._new()
        again, launched = self._rounds.unlock(locked.order, new)
        locked.complete(launched)  # before a new order: its batches go through the same group
        self._follow(again)

    def leave(self) -> None:
        """Ends the thread, unless it is this one: the interpreter's end would find it with objects of a framework."""
        with self._changed:
            self._stopped = self._stopped or Aborted("the job was left before all ranks had called it")
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LEAVE)  # the session is closed: it waits for nothing any more


_negotiators: weakref.WeakKeyDictionary[Group, Negotiator] = weakref.WeakKeyDictionary()
# What was asked for last: a look at the dictionary takes longer.
_latest: tuple[weakref.ref[Group], weakref.ref[Negotiator]] | None = None
_lock = threading.RLock()  # a signal's handler may call an operation, too


def _over(call: Negotiated) -> bool:
    """Whether no other call can be taken for this one."""
    return call.decided() and (not call.request.has_name or call.done())


def negotiator_of(group: Group) -> Negotiator:
    """The one of a group; made at the first call."""
    global _latest
    latest = _latest
    if latest is not None and latest[0]() is group and (known := latest[1]()) is not None:
        return known
    with _lock:
        found = _negotiators.get(group)
        if found is None:
            found = _negotiators.setdefault(
                group, Negotiator(group)
            )  # in which a signal's handler may call this
        _latest = weakref.ref(group), weakref.ref(found)
        return found


def _check_not_joined(group: Group, join: Negotiated | None, request: Request) -> None:
    if join is not None and not join.decided():
        group.session.check()  # a join that failed has ended it
        raise RuntimeError(
            f"{request.title} was called while another thread of this rank waits in join, or the code that a signal's "
            "handler has interrupted: the other ranks go on without it. Call join after all operations"
        )


def _started(serve: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=serve, name="slipstream negotiation", daemon=True)
    try:
        thread.start()
    except KeyError as error:  # by CPython, where a signal's handler has raised in there
        raise error.__context__ or error from None
    return thread


def forget(group: Group) -> None:
    """Ends the negotiator of a group that is not used any more."""
    global _latest
    with _lock:
        found = _negotiators.pop(group, None)
        _latest = None
    if found is not None:
        found.leave()


def _forget_after_fork() -> None:
    global _latest, _lock, _negotiators
    _latest = None
    _lock = threading.RLock()
    _negotiators = weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_forget_after_fork)
