"""What staging needs of an accelerator: memory the engine can read, queues for copies, and events.

Words: a *queue* runs what it is given in order, beside others (a CUDA stream). The caller's *current queue* is the
one that the framework gives work to in the calling thread. An *event* marks a place in a queue.

A `Device` has two side queues, one for each direction. What is put on them never waits for anything but
earlier copies on the same queue, since staging asks for a copy only when all it depends on is done. So no copy can
hold up another one for long, and no chain of waiting can close to a ring.

The caller keeps all memory alive that a queue works on, until the event that was returned for it is done; nothing
else (PyTorch's `record_stream`, say) is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Copies", "Device", "Event", "HostBuffer", "Memory", "Strip"]

Copies = Sequence[tuple[Any, Any]]
"""(target, source) of every copy: arrays of the device's framework, equal in shape and dtype."""


@dataclass(frozen=True)
class Strip:
    """Elements of flat memory: ``rows`` rows of ``width``, the first at ``start``, each ``step`` behind the last."""

    start: int
    rows: int
    width: int
    step: int


@dataclass(frozen=True, eq=False)
class HostBuffer:
    """Host memory that a device copies from and to by itself. ``array``: the framework's view, which owns it."""

    array: Any
    address: int
    nbytes: int


class Memory(Protocol):
    """An array of a framework, as staging sees it. What staging cuts is flat: its elements lie in a row."""

    @property
    def address(self) -> int:
        """Of the first element, on its device."""

    @property
    def nbytes(self) -> int:
        """From the first element to the end of the last."""

    def shares(self, other: Memory) -> bool:
        """Whether any element is in both: two columns of a matrix share none."""

    def views(self, strips: Sequence[Strip], buffer: HostBuffer) -> Copies:
        """For each strip, the view of it in this memory, and one of its place in ``buffer``, where strips lie in a
        row from the first byte on.
        """


class Event(Protocol):
    """A place in a queue. Any thread may ask."""

    def query(self) -> bool:
        """Whether the queue has got there. Never blocks; raises what went wrong on the device, if it knows."""


class Device(Protocol):
    """One accelerator of this process. Methods never block, and may be called by any thread."""

    def pinned(self, nbytes: int) -> HostBuffer:
        """New host memory, ``nbytes`` long (at least 1)."""

    def ready(self) -> Event:
        """An event behind all that the caller's current queue has been given so far."""

    def copy_out(self, copies: Copies) -> Event:
        """Copies from device memory to `pinned` memory, behind all earlier calls of this method."""

    def copy_in(self, copies: Copies) -> Event:
        """Copies from `pinned` memory to device memory, behind all earlier calls of this method and of `finish`."""

    def finish(self, work: Callable[[], None]) -> Event:
        """Has ``work``, a function that computes on this device, done behind all earlier `copy_in`."""

    def wait_for(self, event: Event) -> None:
        """Makes the caller's current queue wait for an event of this device; the host does not wait."""
