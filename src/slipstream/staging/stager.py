"""Memory of accelerators on its way to the engine and back: through pinned host memory, part by part, beside
the network.

An operation is cut into *parts*, ranges of columns of every block, and each part takes three hops:

    copy out       device to pinned memory, on the device's queue for that
    network        the engine's operation on pinned memory
    copy in        pinned memory to device, on the device's other queue

so that while one part is on the network, the next comes from the device and the last goes back to it. One thread
serves all operations of the process (`Stager`), and blocks at one place only, where it waits for whatever happens
next.

**Order.** The engine matches the operations of a channel by the order of their submission. A *pipeline* keeps it: one
for each group and channel (collectives have one; sends and receives one for each direction, peer and tag, so that a
receive to which nothing is sent holds up nothing else). In a pipeline, parts are issued strictly in the order in
which `stage` was called, and within a call from the first column on. How a call is cut follows from its counts and
from constants, equal on all ranks; where ranks may see different counts (all_to_all), they first agree on the widest
block, in the call's turn. So every rank issues the same operations in the same order. Nothing but `stage` may issue
operations on the group it is given: they would come between.

**Memory that calls share.** A call whose memory overlaps with that of an earlier one that is under way (and one of
them writes) begins when that one has landed. In a pipeline it is behind it anyway. Between pipelines the ranks may
have the two in different orders, so it is refused while the earlier one is still on the network, and the session
ends.

**Nothing deadlocks.** A copy out starts when the caller's queue has done what it had been given before the call; it
waits for no network. Copies are put on the side queues only when they can run, so none stands behind one that cannot.
A copy in waits for the network, and for the same place in the caller's queue. `StagedWork.wait` lets the
caller's queue wait only for copies that are on their way. So a device never waits for the network, and pipelines
never for each other.

**Memory.** A pipeline has 16 MiB under way in each direction at most, or one part, if that is more; 64 MiB of idle
buffers are kept. Arrays are kept alive until the device has done the last copy.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.base.errors import Aborted
from slipstream.base.own_names import own_name
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.copies_back import refusal
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group
from slipstream.staging.calls import Ends
from slipstream.staging.device import Event, Memory
from slipstream.staging.pool import Pool
from slipstream.staging.transfers import StagedPart, StagedWork, Transfer

__all__ = ["Limits", "Stager"]

_SHORTEST_PAUSE, _LONGEST_PAUSE = 20e-6, 1e-3  # seconds between two looks at the device
_PATIENCE = 16  # a pause is this part of the time without progress
_CLOSED, _WAKE = -1, 0  # tokens

_WIDEST = own_name("the widest block")


@dataclass(frozen=True)
class Limits:
    """Bytes. ``part``: the larger side of one (the same on all ranks). ``window``: what a pipeline has between
    the start of the copy out and the end of the copy in. ``idle``: of buffers kept for later.
    """

    part: int = 4 << 20
    window: int = 16 << 20
    idle: int = 64 << 20


class _Pipeline:
    """The calls of one channel, in their order. Parts go from one stage to the next; the steps return True when
    they wait for the device.
    """

    def __init__(self, stager: Stager) -> None:
        self._stager = stager
        self.waiting: deque[Transfer] = deque()  # some parts not begun
        self.leaving: deque[StagedPart] = deque()  # being copied out
        self.arrived: deque[StagedPart] = deque()  # over on the network, or never issued
        self.landing: deque[tuple[Event | None, Transfer, StagedPart | None]] = deque()  # being copied in
        self._parts = 0  # begun, and not landed
        self._held = 0  # bytes of those

    def idle(self) -> bool:
        return not (self.waiting or self._parts or self.landing)

    def _break(self, t: Transfer, error: Exception) -> None:
        """Fails a call that cannot go on here. Other ranks may have begun it: they must neither wait for our part nor
        take the next operation for it, so the session ends.
        """
        if t.error is None:
            t.group.session.abort(f"rank {t.group.rank} could not stage {t.call.name}: {error}")
        t.fail(error)

    def _reached(self, event: Event | None, t: Transfer) -> bool:
        """Whether the device is there; one that has failed gets no further."""
        if event is None:
            return True
        try:
            return event.query()
        except Exception as error:
            self._break(t, error)
            return True

    def advance(self) -> bool:
        """Does all that can be done now. True if something here waits for the device."""
        while True:
            before = self._stager.steps
            waits = [self._land(), self._release(), self._begin(), self._issue()]
            if self._stager.steps == before:
                return any(waits)

    def _begin(self) -> bool:
        """Starts the copies of the next parts, as far as the window goes."""
        while self.waiting:
            t = self.waiting[0]
            if t.starts is None:
                if not t.call.uneven:
                    t.cut(t.widest(), self._stager.limits.part)
                elif not t.agreeing and not self.leaving:
                    self._agree(t)
            if t.starts is None:
                return False
            if t.src is not None and not self._reached(t.ready, t):
                return True
            t.after = [earlier for earlier in t.after if not earlier.over]
            if t.after and t.error is None:
                return any(earlier.work.done() for earlier in t.after)
            while t.starts:
                part = StagedPart(t, t.starts[0])
                full = self._parts and self._held + part.nbytes > self._stager.limits.window
                if full or (t.call.serial and t.live):
                    return False
                t.starts.popleft()
                self._start(part)
            self.waiting.popleft()
            self._stager.steps += 1
            self._settle(t)
        return False

    def _start(self, part: StagedPart) -> None:
        self._stager.steps += 1
        self._parts += 1
        self._held += part.nbytes
        part.transfer.live += 1
        try:
            part.copy_out(self._stager.pool)
        except Exception as error:
            self._break(part.transfer, error)
        self.leaving.append(part)

    def _agree(self, t: Transfer) -> None:
        """Asks all ranks for the widest block that any of them has."""
        t.agreeing = True
        widest = np.array([t.widest()], dtype=np.int64)
        address = widest.ctypes.data
        try:
            work = addresses.all_reduce(
                t.group, address, address, 1, DType.I64, Op.MAX, name=_WIDEST, keep=widest
            )
        except Exception as error:
            t.fail(error)
            return
        self._stager.watch(work, partial(self._agreed, t, work, widest))

    def _agreed(self, t: Transfer, work: Work, widest: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        try:
            work.wait()
            t.cut(int(widest[0]), self._stager.limits.part)
        except Exception as error:
            t.fail(error)

    def _issue(self) -> bool:
        """Gives the engine what has been copied out."""
        while self.leaving:
            part = self.leaving[0]
            t = part.transfer
            if not self._reached(part.event, t):
                return True
            self._stager.steps += 1
            self.leaving.popleft()
            part.event = None
            if t.error is not None:
                self.arrived.append(part)
                continue
            try:
                work = part.issue()
            except Exception as error:
                if t.issued:
                    self._break(t, error)
                t.fail(error)  # a wrong argument, or the session has failed
                self.arrived.append(part)
                continue
            if not t.issued:
                t.issued, t.work._first = True, work
            self._stager.watch(work, partial(self._arrive, part, work))
        return False

    def _arrive(self, part: StagedPart, work: Work) -> None:
        try:
            work.wait()
        except Exception as error:
            part.transfer.fail(error)
        self.arrived.append(part)

    def _land(self) -> bool:
        """Starts the copies of what has come."""
        while self.arrived:
            part = self.arrived[0]
            t = part.transfer
            if t.error is None and t.dst is not None and not self._reached(t.ready, t):
                return True
            self._stager.steps += 1
            self.arrived.popleft()
            if t.error is None:
                try:
                    part.copy_in()
                except Exception as error:
                    self._break(t, error)
            self.landing.append((part.event, t, part))
            t.landing += 1
            t.live -= 1
            self._settle(t)
        return False

    def _settle(self, t: Transfer) -> None:
        """Ends a call of which no part is left: nothing of it is used any more but by the device."""
        if t.live or t.starts or t.work.done():
            return
        if t.error is None and t.finish is not None:
            try:
                t.landed = t.device.finish(t.finish)
                self.landing.append((t.landed, t, None))
                t.landing += 1
            except Exception as error:
                self._break(t, error)
        self._stager.settled(t)
        self._stager.note_end(t)

    def _release(self) -> bool:
        """Takes back the buffers of what the device has."""
        while self.landing:
            event, t, part = self.landing[0]
            if not self._reached(event, t):
                return True
            self._stager.steps += 1
            self.landing.popleft()
            t.landing -= 1
            self._stager.note_end(t)
            if part is not None:
                self._parts -= 1
                self._held -= part.nbytes
                for buffer in part.buffers:
                    self._stager.pool.give(t.device, buffer)
        return False


class Stager:
    """Runs the staged operations of a process; all methods but `stage` and `close` belong to one thread."""

    def __init__(self, limits: Limits | None = None, completions: Any = None) -> None:
        """``completions``: a `_core.Completions`, or what behaves like one."""
        self.limits = limits or Limits()
        self.pool = Pool(self.limits.idle)
        self.steps = 0  # taken so far
        self._completions = _core.Completions() if completions is None else completions
        self._tokens = count(_WAKE + 1)
        self._watched: dict[int, Callable[[], None]] = {}
        self._pipelines: dict[object, _Pipeline] = {}
        self._open: set[Transfer] = set()
        self._polling = False
        self._since = 0.0  # when the last step was taken
        self._lock = threading.Lock()
        self._inbox: deque[Transfer] = deque()  # guarded by the lock, as are the next
        self._flying: dict[Transfer, None] = {}  # in the order of their calls, until they are over
        self._closed: BaseException | None = None

    def stage(self, transfer: Transfer) -> StagedWork:
        """Begins an operation; see `slipstream.staging.process.stage`. Any thread."""
        with self._lock:
            if self._closed is not None:
                raise self._closed
            transfer.after = [earlier for earlier in self._flying if earlier.conflicts(transfer)]
            for earlier in transfer.after:
                _check_order(earlier, transfer.group, transfer.call.ends, transfer.call.name)
            try:
                self._flying[transfer] = None
                self._inbox.append(transfer)
            finally:  # an exception of a signal handler may come between
                self._completions.post(_WAKE)
        return transfer.work

    def settle(self, memory: Memory, group: Group, ends: Ends | None, name: str, writes: bool) -> None:
        """Waits for earlier calls that need the memory; see `slipstream.staging.process.settle`. Any thread."""
        with self._lock:
            found = [earlier for earlier in self._flying if earlier.needs(memory, writes)]
        for earlier in found:
            _check_order(earlier, group, ends, name)
            with Together(group, name):
                try:
                    earlier.work.wait()
                except Exception:  # for who waits for it
                    continue

    def close(self) -> None:
        """Ends `run`, and fails what is under way. Any thread."""
        self._completions.close()

    def run(self) -> None:
        """Serves until `close`."""
        error: BaseException = Aborted("the process is ending")
        try:
            while self.turn():
                pass
        except BaseException as bug:
            error = bug
            raise
        finally:
            self._fail_all(error)

    def turn(self) -> bool:
        """Waits until something happens, or it is time to look at the device, and does what follows. False once
        closed.
        """
        token = self._completions.wait(self._pause())
        if token == _CLOSED:
            return False
        before, polled = self.steps, self._polling
        if token is not None and token != _WAKE:
            self._watched.pop(token)()
            self.steps += 1
        self._take_inbox()
        self._polling = False
        for key, pipeline in list(self._pipelines.items()):
            self._polling |= pipeline.advance()
            if pipeline.idle():
                del self._pipelines[key]
        if self.steps != before or not polled:
            self._since = time.monotonic()
        return True

    def _pause(self) -> float | None:
        """Devices tell nothing by themselves. Looking again after a fixed part of the time waited so far costs that
        part at most, and little work.
        """
        if not self._polling:
            return None
        waited = time.monotonic() - self._since
        return min(max(waited / _PATIENCE, _SHORTEST_PAUSE), _LONGEST_PAUSE)

    def _take_inbox(self) -> None:
        with self._lock:
            new = list(self._inbox)
            self._inbox.clear()
        for transfer in new:
            self._open.add(transfer)
            key = transfer.order
            if key not in self._pipelines:
                self._pipelines[key] = _Pipeline(self)
            self._pipelines[key].waiting.append(transfer)

    def watch(self, work: Work, then: Callable[[], None]) -> None:
        """Calls ``then`` once the work is done: now, or in a later turn."""
        if work.native is None:
            then()
            return
        token = next(self._tokens)
        self._watched[token] = then
        self._completions.add(work.native, token)

    def settled(self, transfer: Transfer) -> None:
        """Tells those who wait how a call has ended."""
        self._open.discard(transfer)
        end = transfer.work._end
        if transfer.error is not None:
            end.set_exception(transfer.error)
        else:
            end.set_result([event for event in (transfer.left, transfer.landed) if event is not None])

    def note_end(self, transfer: Transfer) -> None:
        """Lets later calls use the memory of one that is over."""
        if transfer.landing or not transfer.work.done():
            return
        transfer.over = True
        with self._lock:
            self._flying.pop(transfer, None)

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            self._closed = error
            left = [*self._open, *self._inbox]
            self._inbox.clear()
        for transfer in left:
            transfer.fail(error)
            self.settled(transfer)


def _check_order(earlier: Transfer, group: Group, ends: Ends | None, name: str) -> None:
    """The ranks may have called those of other pipelines in another order, so waiting could close a ring."""
    if earlier.order != (group, ends) and not earlier.work.done():
        why = refusal(group, name, earlier.call.name)
        group.session.abort(why)
        raise Aborted(why)
