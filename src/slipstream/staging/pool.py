"""Pinned buffers that are used again: making one takes as long as sending what goes into it."""

from __future__ import annotations

from collections import OrderedDict

from slipstream.staging.device import Device, HostBuffer

__all__ = ["Pool"]

_SMALLEST = 4 << 10


class Pool:
    """Buffers in sizes of powers of two. At most ``idle_bytes`` lie idle; sizes not used for longest go first.

    For one thread.
    """

    def __init__(self, idle_bytes: int) -> None:
        self._limit = idle_bytes
        self._idle: OrderedDict[tuple[Device, int], list[HostBuffer]] = OrderedDict()
        self.idle_bytes = 0
        self.lent_bytes = 0

    def take(self, device: Device, nbytes: int) -> HostBuffer:
        """A buffer of at least ``nbytes``, with any content."""
        size = max(_SMALLEST, 1 << max(nbytes - 1, 0).bit_length())
        stack = self._idle.get((device, size))
        if stack:
            self._idle.move_to_end((device, size))
            self.idle_bytes -= size
            buffer = stack.pop()
        else:
            buffer = device.pinned(size)
        self.lent_bytes += size
        return buffer

    def give(self, device: Device, buffer: HostBuffer) -> None:
        """Takes back a buffer that nobody uses any more."""
        size = buffer.nbytes
        self.lent_bytes -= size
        self.idle_bytes += size
        self._idle.setdefault((device, size), []).append(buffer)
        self._idle.move_to_end((device, size))
        while self.idle_bytes > self._limit:
            (oldest, stack) = next(iter(self._idle.items()))
            if stack:
                self.idle_bytes -= stack.pop().nbytes
            else:
                del self._idle[oldest]
