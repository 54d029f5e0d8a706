"""What is staged: calls under way, and the parts they are cut into (`slipstream.staging.stager` moves them)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
from itertools import accumulate, chain
from typing import Any

from slipstream.base.errors import Timeout
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group
from slipstream.staging.calls import Call
from slipstream.staging.device import Device, Event, HostBuffer, Memory, Strip
from slipstream.staging.pool import Pool

__all__ = ["StagedPart", "StagedWork", "Transfer", "strips"]


class StagedWork:
    """The handle of a staged operation under way. It keeps no memory alive."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._end: futures.Future[list[Event]] = futures.Future()
        self._first: Any = None  # the Work of the first part

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
            raise Timeout(
                f"the operation has not ended within {timeout:g} s and goes on: call wait() again. "
                "SLIPSTREAM_TIMEOUT, or `slipstream run --timeout`, limits the time of an operation; its error names "
                "the ranks that are missing"
            ) from None
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


# ---- geometry


def strips(counts: Sequence[int], start: int, stop: int) -> list[Strip]:
    """Columns ``start`` to ``stop`` of blocks of so many elements, in a row: one strip if that can be, else one per
    block. Empty ones are left out.
    """
    if start == 0 and stop >= max(counts, default=0):
        total = sum(counts)
        found = [Strip(0, 1, total, total)]
    elif len(counts) > 1 and len(set(counts)) == 1:
        found = [Strip(start, len(counts), min(stop, counts[0]) - start, counts[0])]
    else:
        ends = accumulate(counts)
        found = [
            Strip(end - n + start, 1, min(stop, n) - start, n) for n, end in zip(counts, ends, strict=True)
        ]
    return [strip for strip in found if strip.width > 0]


# ---- what is under way


class Transfer:
    """A call to stage: the input and output of ``call`` are ``src`` and ``dst``, flat memory of ``device``.

    Both are the same for an operation in place, None where the call has no use for one. ``group``: what the call
    issues its operations on. ``finish``, if there is one, copies ``dst`` to ``results``, where the caller wants it.
    It is made in the caller's thread: the operation comes after what the current queue has been given so far.
    """

    def __init__(
        self,
        device: Device,
        group: Group,
        call: Call,
        src: Memory | None,
        dst: Memory | None,
        finish: Callable[[], None] | None = None,
        results: Sequence[Memory] = (),
    ) -> None:
        self.device, self.group, self.call, self.finish = device, group, call, finish
        self.src = src if call.reads else None
        self.dst = dst if call.writes else None
        self.in_place = self.src is None or self.dst is None or _same(self.src, self.dst)
        self.ready = device.ready()
        used = [(self.src, False), (self.dst, True)]
        used += [(memory, True) for memory in (results if finish is not None else ())]
        self._used = [(memory, writes) for memory, writes in used if memory is not None]
        self.work = StagedWork(device)
        self.starts: deque[int] | None = None  # first columns of the parts not begun; None: not cut yet
        self.width = 0
        self.agreeing = False
        self.live = 0  # parts begun and not over
        self.issued = False  # any of them
        self.landing = 0  # parts, and `finish`, that are being copied in
        self.over = False  # nothing of it uses memory any more
        self.after: list[Transfer] = []  # earlier calls that use the same memory
        self.left: Event | None = None  # behind the last copy out
        self.landed: Event | None = None  # behind the last copy in
        self.error: BaseException | None = None

    @property
    def order(self) -> tuple[Group, object]:
        """Calls with equal ones are issued in the order in which they were made."""
        return self.group, self.call.ends

    def needs(self, memory: Memory, writes: bool) -> bool:
        """Whether it uses some of this memory, and one of them writes to it."""
        low, high = memory.address, memory.address + memory.nbytes
        return any(
            mine.address < high
            and low < mine.address + mine.nbytes
            and (mine_writes or writes)
            and mine.shares(memory)
            for mine, mine_writes in self._used
        )

    def conflicts(self, later: Transfer) -> bool:
        """Whether a later call must wait for this one's end."""
        return any(self.needs(memory, writes) for memory, writes in later._used)

    def widest(self) -> int:
        """Elements of the widest block this rank knows of."""
        return max(chain(self.call.sent, self.call.received), default=0)

    def cut(self, widest: int, part_bytes: int) -> None:
        """Divides it, where the widest block on any rank has ``widest`` elements."""
        blocks = max(len(self.call.sent), len(self.call.received))
        width = max(1, part_bytes // (self.call.itemsize * blocks))
        self.width = width // 64 * 64 or width
        self.starts = deque(range(0, max(widest, 1), self.width))

    def fail(self, error: BaseException) -> None:
        """Notes the first error; parts not begun never will be."""
        self.error = self.error or error
        self.starts = deque()


def _same(a: Memory, b: Memory) -> bool:
    return a.address == b.address and a.nbytes == b.nbytes and a.nbytes > 0


class StagedPart:
    """Some columns of a call, on their way."""

    def __init__(self, transfer: Transfer, start: int) -> None:
        self.transfer = transfer
        self.start, self.stop = start, start + transfer.width
        self.call = transfer.call.part(self.start, self.stop)
        self.out_bytes = sum(self.call.sent) * self.call.itemsize if transfer.src is not None else 0
        self.in_bytes = sum(self.call.received) * self.call.itemsize if transfer.dst is not None else 0
        self.nbytes = max(self.out_bytes, self.in_bytes)
        self.buffers: list[HostBuffer] = []  # the engine reads from the first, and writes to the last
        self.event: Event | None = None  # of the copy under way

    def copy_out(self, pool: Pool) -> None:
        """Takes buffers, and starts the copy to them."""
        t = self.transfer
        for size in [self.nbytes] if t.in_place else [self.out_bytes, self.in_bytes]:
            self.buffers.append(pool.take(t.device, size))
        if t.src is not None and self.out_bytes:
            views = t.src.views(strips(t.call.sent, self.start, self.stop), self.buffers[0])
            self.event = t.left = t.device.copy_out([(host, memory) for memory, host in views])

    def issue(self) -> Work:
        """Starts the operation on the buffers."""
        src, dst = self.buffers[0].address, self.buffers[-1].address
        return self.call.issue(src, dst, self.call.sent, self.call.received, list(self.buffers), False)

    def copy_in(self) -> None:
        """Starts the copy from the buffers."""
        t = self.transfer
        if t.dst is not None and self.in_bytes:
            views = t.dst.views(strips(t.call.received, self.start, self.stop), self.buffers[-1])
            self.event = t.landed = t.device.copy_in(views)
