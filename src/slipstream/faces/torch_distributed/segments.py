"""What is staged: calls, and the segments they are cut into (`staging` moves them)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
from itertools import accumulate, chain
from typing import Any, Protocol

import torch

from slipstream.base.errors import Timeout
from slipstream.comm.group import Group
from slipstream.comm.work import Work
from slipstream.faces.torch_distributed.calls import Call
from slipstream.faces.torch_distributed.devices import Copies, Device, Event
from slipstream.faces.torch_distributed.devices.pool import Pool

__all__ = ["Pending", "Segment", "Task", "Transfer", "columns", "pairs"]


class Task(Protocol):
    """What can be staged: `operations.Task`, which explains the fields.

    If it also has ``serial``, and that is true, each segment is issued only when the one before is over: those of a
    receive from any source must come from where the first came from.
    """

    call: Call
    src: torch.Tensor | None
    dst: torch.Tensor | None
    finish: Callable[[], None] | None
    channel: object
    uneven: bool


class Pending:
    """A staged operation under way. It keeps no memory alive."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._end: futures.Future[list[Event]] = futures.Future()
        self._first: Any = None  # the Work of the first segment

    def done(self) -> bool:
        """True once `wait` would not block: the network part is over and the copy in under way, or it failed."""
        return self._end.done()

    def wait(self, timeout: float | None = None) -> None:
        """Waits on the host until `done`, then makes the caller's current queue wait for the result.

        ``timeout`` (seconds) limits this wait, not the operation: Timeout is raised and it goes on. Raises the
        operation's error.
        """
        try:
            error = self._end.exception(timeout)
        except futures.TimeoutError:
            raise Timeout(f"the operation is not done after {timeout:g} s") from None
        if error is not None:
            raise error
        for event in self._end.result():
            self._device.wait_for(event)

    def add_done_callback(self, callback: Callable[..., object]) -> None:
        """Calls ``callback`` with one argument once `done`: at once, or in the staging thread, which must not be
        made to wait.
        """
        self._end.add_done_callback(callback)

    def source(self) -> int:
        """The rank of the group whose message an any-source receive got."""
        rank: int = self._first.source()
        return rank


# ---- views


def columns(flat: torch.Tensor, counts: Sequence[int], start: int, stop: int) -> list[torch.Tensor]:
    """Columns ``start`` to ``stop`` of every block of ``flat``: one view if there can be one, else one per block."""
    if start == 0 and stop >= max(counts, default=0):
        return [flat]
    if len(counts) > 1 and len(set(counts)) == 1:
        return [flat.view(len(counts), counts[0])[:, start:stop]]
    return [
        flat[end - n + start : end - n + min(stop, n)]
        for n, end in zip(counts, accumulate(counts), strict=True)
        if start < n
    ]


def pairs(
    flat: torch.Tensor, counts: Sequence[int], buffer: torch.Tensor, nbytes: int, start: int, stop: int
) -> Copies:
    """(device view, host view) of those columns, which lie in ``buffer`` one after another."""
    packed = buffer[:nbytes].view(flat.dtype)
    views = columns(flat, counts, start, stop)
    ends = accumulate(view.numel() for view in views)
    return [
        (view, packed[end - view.numel() : end].view(view.shape))
        for view, end in zip(views, ends, strict=True)
        if view.numel()
    ]


# ---- what is under way


class Transfer:
    """A staged call."""

    def __init__(self, device: Device, task: Task, group: Group) -> None:
        call = task.call
        self.device, self.task, self.group, self.call = device, task, group, call
        # `.data` counts versions for itself: autograd must not take what we write for a change made by the user
        self.src = task.src.data if task.src is not None and call.reads else None
        self.dst = task.dst.data if task.dst is not None and call.writes else None
        self.in_place = self.src is None or self.dst is None or _same(self.src, self.dst)
        self.ready = device.ready()
        self.pending = Pending(device)
        self.starts: deque[int] | None = None  # first columns of the segments not begun; None: not cut yet
        self.width = 0
        self.agreeing = False
        self.serial: bool = getattr(task, "serial", False)
        self.live = 0  # segments begun and not over
        self.issued = False  # any of them
        self.left: Event | None = None  # behind the last copy out
        self.landed: Event | None = None  # behind the last copy in
        self.error: BaseException | None = None

    def widest(self) -> int:
        """Elements of the widest block this rank knows of."""
        return max(chain(self.call.sent, self.call.received), default=0)

    def cut(self, widest: int, segment_bytes: int) -> None:
        """Divides it, where the widest block on any rank has ``widest`` elements."""
        blocks = max(len(self.call.sent), len(self.call.received))
        width = max(1, segment_bytes // (self.call.itemsize * blocks))
        self.width = width // 64 * 64 or width
        self.starts = deque(range(0, max(widest, 1), self.width))

    def fail(self, error: BaseException) -> None:
        """Notes the first error; segments not begun never will be."""
        self.error = self.error or error
        self.starts = deque()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and a.numel() > 0


class Segment:
    """Some columns of a call, on their way."""

    def __init__(self, transfer: Transfer, start: int) -> None:
        self.transfer = transfer
        self.start, self.stop = start, start + transfer.width
        self.call = transfer.call.part(self.start, self.stop)
        self.out_bytes = sum(self.call.sent) * self.call.itemsize if transfer.src is not None else 0
        self.in_bytes = sum(self.call.received) * self.call.itemsize if transfer.dst is not None else 0
        self.nbytes = max(self.out_bytes, self.in_bytes)
        self.buffers: list[
            torch.Tensor
        ] = []  # what the engine reads is in the first, what it writes in the last
        self.event: Event | None = None  # of the copy under way

    def copy_out(self, pool: Pool) -> None:
        """Takes buffers, and starts the copy to them."""
        t = self.transfer
        for size in [self.nbytes] if t.in_place else [self.out_bytes, self.in_bytes]:
            self.buffers.append(pool.take(t.device, size))
        if t.src is not None and self.out_bytes:
            views = pairs(t.src, t.call.sent, self.buffers[0], self.out_bytes, self.start, self.stop)
            self.event = t.left = t.device.copy_out([(host, memory) for memory, host in views])

    def issue(self) -> Work:
        """Starts the operation on the buffers."""
        src, dst = self.buffers[0].data_ptr(), self.buffers[-1].data_ptr()
        return self.call.issue(src, dst, self.call.sent, self.call.received, list(self.buffers), False)

    def copy_in(self) -> None:
        """Starts the copy from the buffers."""
        t = self.transfer
        if t.dst is not None and self.in_bytes:
            views = pairs(t.dst, t.call.received, self.buffers[-1], self.in_bytes, self.start, self.stop)
            self.event = t.landed = t.device.copy_in(views)
