"""A collective as data: what every rank of it sends and receives, and how the engine is asked for it.

All operations of a face come down to a `Call` on one flat input and one flat output, which may be
the same memory. What the counts describe can be cut: a range of columns of every block is an operation of its own,
which is how device memory is staged part by part (`slipstream.staging.stager`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.comm.collectives.work import Work

__all__ = ["Call", "Ends"]

Issue = Callable[[int, int, Sequence[int], Sequence[int], object, bool], Work]
Ends = tuple[int, int, int]
"""Sender, receiver and tag."""


@dataclass(slots=True)  # not frozen: made for each operation, in half the time
class Call:
    """One operation on this rank.

    ``sent``: elements of each block of the input, one block for operations on whole buffers (all_reduce,
    broadcast, send), one per rank of the group for reduce_scatter and all_to_all. ``received``: the same for the
    output. ``issue(src, dst, sent, received, keep, sync)`` starts the operation on addresses, on as many elements of
    each block as its arguments say, and returns its Work; ``keep`` owns that memory. ``reads`` and ``writes``: whether
    the input is read and the output written on this rank (a broadcast reads on the root and writes elsewhere).
    ``ends``: operations of a group with equal ends run in the order of their calls (collectives have none; from any
    source: this rank twice). ``uneven``: ranks may see blocks of different sizes. ``serial``: of the parts of a staged
    call, each may be issued only when the one before is over.
    """

    name: str
    itemsize: int
    sent: Sequence[int]
    received: Sequence[int]
    issue: Issue
    reads: bool = True
    writes: bool = True
    ends: Ends | None = None
    uneven: bool = False
    serial: bool = False

    def part(self, start: int, stop: int) -> Call:
        """The same operation on columns ``start`` to ``stop`` of every block."""
        return Call(
            self.name,
            self.itemsize,
            [min(max(n - start, 0), stop - start) for n in self.sent],
            [min(max(n - start, 0), stop - start) for n in self.received],
            self.issue,
            self.reads,
            self.writes,
        )
