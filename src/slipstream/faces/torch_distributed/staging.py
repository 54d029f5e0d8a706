"""Tensors on accelerators: through pinned host memory, piece by piece, beside the network.

An operation is cut into *segments*, ranges of columns of every block, and each segment takes three hops:

    copy out       device to pinned memory, on the device's queue for that
    network        the engine's operation on pinned memory
    copy in        pinned memory to device, on the device's other queue

so that while one segment is on the network, the next comes from the device and the last goes back to it. One thread
serves all operations of the process (`Stager`), and blocks at one place only, where it waits for whatever happens
next.

**Order.** The engine matches the operations of a channel by the order of their submission. A *lane* keeps it: one for
each group and channel (collectives have one; sends and receives one for each direction, peer and tag, so that a
receive to which nothing is sent holds up nothing else). In a lane, segments are issued strictly in the order in
which `stage` was called, and within a call from the first column on. How a call is cut follows from its counts and
from constants, equal on all ranks; where ranks may see different counts (all_to_all), they first agree on the widest
block, in the call's turn. So every rank issues the same operations in the same order. Nothing but `stage` may issue
operations on the group it is given: they would come between.

**Nothing deadlocks.** A copy out starts when the caller's queue has done what it had been given before the call; it
waits for no network. Copies are put on the side queues only when they can run, so none stands behind one that cannot.
A copy in waits for the network, and for the same place in the caller's queue. `Pending.wait` lets the caller's queue
wait only for copies that are on their way. So a device never waits for the network, and lanes never for each other.

**Memory.** A lane has 16 MiB under way in each direction at most, or one segment, if that is more; 64 MiB of idle
buffers are kept. Tensors are kept alive until the device has done the last copy.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.base.errors import Aborted
from slipstream.comm import raw
from slipstream.comm.group import Group
from slipstream.comm.work import Work
from slipstream.faces.torch_distributed.devices import Device, Event
from slipstream.faces.torch_distributed.devices.pool import Pool
from slipstream.faces.torch_distributed.segments import Pending, Segment, Task, Transfer

__all__ = ["Limits", "Pending", "Stager", "stage"]

_SHORTEST_PAUSE, _LONGEST_PAUSE = 20e-6, 1e-3  # seconds between two looks at the device
_PATIENCE = 16  # a pause is this part of the time without progress
_CLOSED, _WAKE = -1, 0  # tokens


@dataclass(frozen=True)
class Limits:
    """Bytes. ``segment``: the larger side of one (the same on all ranks). ``window``: what a lane has between the
    start of the copy out and the end of the copy in. ``idle``: of buffers kept for later.
    """

    segment: int = 4 << 20
    window: int = 16 << 20
    idle: int = 64 << 20


class _Lane:
    """The calls of one channel, in their order. Segments go from one queue to the next; the steps return True when
    they wait for the device.
    """

    def __init__(self, stager: Stager) -> None:
        self._stager = stager
        self.waiting: deque[Transfer] = deque()  # some segments not begun
        self.leaving: deque[Segment] = deque()  # being copied out
        self.arrived: deque[Segment] = deque()  # over on the network, or never issued
        self.landing: deque[tuple[Event | None, Transfer, Segment | None]] = deque()  # being copied in
        self._segments = 0  # begun, and not landed
        self._held = 0  # bytes of those

    def idle(self) -> bool:
        return not (self.waiting or self._segments or self.landing)

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
        """Starts the copies of the next segments, as far as the window goes."""
        while self.waiting:
            t = self.waiting[0]
            if t.starts is None:
                if not t.task.uneven:
                    t.cut(t.widest(), self._stager.limits.segment)
                elif not t.agreeing and not self.leaving:
                    self._agree(t)
            if t.starts is None:
                return False
            if t.src is not None and not self._reached(t.ready, t):
                return True
            while t.starts:
                segment = Segment(t, t.starts[0])
                full = self._segments and self._held + segment.nbytes > self._stager.limits.window
                if full or (t.serial and t.live):
                    return False
                t.starts.popleft()
                self._start(segment)
            self.waiting.popleft()
            self._stager.steps += 1
            self._settle(t)
        return False

    def _start(self, segment: Segment) -> None:
        self._stager.steps += 1
        self._segments += 1
        self._held += segment.nbytes
        segment.transfer.live += 1
        try:
            segment.copy_out(self._stager.pool)
        except Exception as error:
            self._break(segment.transfer, error)
        self.leaving.append(segment)

    def _agree(self, t: Transfer) -> None:
        """Asks all ranks for the widest block that any of them has."""
        t.agreeing = True
        widest = np.array([t.widest()], dtype=np.int64)
        address = widest.ctypes.data
        try:
            work = raw.all_reduce(t.group, address, address, 1, DType.I64, Op.MAX, name="widest", keep=widest)
        except Exception as error:
            t.fail(error)
            return
        self._stager.watch(work, partial(self._agreed, t, work, widest))

    def _agreed(self, t: Transfer, work: Work, widest: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        try:
            work.wait()
            t.cut(int(widest[0]), self._stager.limits.segment)
        except Exception as error:
            t.fail(error)

    def _issue(self) -> bool:
        """Gives the engine what has been copied out."""
        while self.leaving:
            segment = self.leaving[0]
            t = segment.transfer
            if not self._reached(segment.event, t):
                return True
            self._stager.steps += 1
            self.leaving.popleft()
            segment.event = None
            if t.error is not None:
                self.arrived.append(segment)
                continue
            try:
                work = segment.issue()
            except Exception as error:
                if t.issued:
                    self._break(t, error)
                t.fail(error)  # a wrong argument, or the session has failed
                self.arrived.append(segment)
                continue
            if not t.issued:
                t.issued, t.pending._first = True, work
            self._stager.watch(work, partial(self._arrive, segment, work))
        return False

    def _arrive(self, segment: Segment, work: Work) -> None:
        try:
            work.wait()
        except Exception as error:
            segment.transfer.fail(error)
        self.arrived.append(segment)

    def _land(self) -> bool:
        """Starts the copies of what has come."""
        while self.arrived:
            segment = self.arrived[0]
            t = segment.transfer
            if t.error is None and t.dst is not None and not self._reached(t.ready, t):
                return True
            self._stager.steps += 1
            self.arrived.popleft()
            if t.error is None:
                try:
                    segment.copy_in()
                except Exception as error:
                    self._break(t, error)
            self.landing.append((segment.event, t, segment))
            t.live -= 1
            self._settle(t)
        return False

    def _settle(self, t: Transfer) -> None:
        """Ends a call of which no segment is left: nothing of it is used any more but by the device."""
        if t.live or t.starts or t.pending.done():
            return
        if t.error is None and t.task.finish is not None:
            try:
                t.landed = t.device.finish(t.task.finish)
                self.landing.append((t.landed, t, None))
            except Exception as error:
                self._break(t, error)
        self._stager.settled(t)

    def _release(self) -> bool:
        """Takes back the buffers of what the device has."""
        while self.landing:
            event, t, segment = self.landing[0]
            if not self._reached(event, t):
                return True
            self._stager.steps += 1
            self.landing.popleft()
            if segment is not None:
                self._segments -= 1
                self._held -= segment.nbytes
                for buffer in segment.buffers:
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
        self._lanes: dict[object, _Lane] = {}
        self._open: set[Transfer] = set()
        self._polling = False
        self._since = 0.0  # when the last step was taken
        self._lock = threading.Lock()
        self._inbox: deque[Transfer] = deque()  # guarded by the lock, as is the next
        self._closed: BaseException | None = None

    def stage(self, device: Device, task: Task, group: Group) -> Pending:
        """Begins an operation; see the module's `stage`. Any thread."""
        transfer = Transfer(device, task, group)
        with self._lock:
            if self._closed is not None:
                raise self._closed
            try:
                self._inbox.append(transfer)
            finally:  # an exception of a signal handler may come between
                self._completions.post(_WAKE)
        return transfer.pending

    def close(self) -> None:
        """Ends `run`, and fails what is under way. Any thread."""
        self._completions.close()

    def run(self) -> None:
        """Serves until `close`."""
        error: BaseException = Aborted("the process is ending")
        try:
            # tensors made in inference mode can be written to only there, others also there
            with torch.inference_mode():
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
        for key, lane in list(self._lanes.items()):
            self._polling |= lane.advance()
            if lane.idle():
                del self._lanes[key]
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
            key = transfer.group, transfer.task.channel
            if key not in self._lanes:
                self._lanes[key] = _Lane(self)
            self._lanes[key].waiting.append(transfer)

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
        end = transfer.pending._end
        if transfer.error is not None:
            end.set_exception(transfer.error)
        else:
            end.set_result([event for event in (transfer.left, transfer.landed) if event is not None])

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            self._closed = error
            left = [*self._open, *self._inbox]
            self._inbox.clear()
        for transfer in left:
            transfer.fail(error)
            self.settled(transfer)


# ---- the one of this process

_stager: Stager | None = None
_thread: threading.Thread | None = None
_making = threading.Lock()


def stage(device: Device, task: Task, group: Group) -> Pending:
    """Begins an operation on tensors of ``device``, ordered after what the caller's current queue has been given.

    ``group``: what ``task.call`` issues its operations on; it must be used for nothing that does not go through here,
    and by all its ranks alike. Tensors may be used again once the current queue of the caller has passed
    `Pending.wait`. Raises what the device raises (RuntimeError while a CUDA graph is being captured).
    """
    global _stager, _thread
    if _stager is None:
        with _making:
            if _stager is None:
                stager = Stager()
                _thread = threading.Thread(target=stager.run, name="slipstream staging", daemon=True)
                _thread.start()
                _stager = stager
    return _stager.stage(device, task, group)


@atexit.register
def _close() -> None:
    """Before the jobs are left, which fails what the engine still has; its buffers stay with the stager."""
    if _stager is not None and _thread is not None:
        _stager.close()
        _thread.join(timeout=5.0)


def _forget_after_fork() -> None:
    """A forked child has not got the thread."""
    global _stager, _thread, _making
    if _stager is not None:
        _core.leak(_stager)
    _stager, _thread, _making = None, None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
