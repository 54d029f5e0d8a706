"""Buckets: the memory in which gradients travel, cut so that every rank cuts alike.

A bucket is one range of memory that other processes of the host can map, so an all-reduce on it copies
nothing. Where a gradient travels as it is, its place in the bucket can then *become* the gradient: it is copied
in when backward has made it, and never out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from slipstream.base.dtypes import DType, itemsize
from slipstream.comm.collectives.buffers import empty
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group

__all__ = ["Bucket", "GradientPlace", "Parameter", "cut"]

BUCKET_BYTES = 32 << 20
# The first bucket is small, so that communication starts while backward has only begun.
FIRST_BUCKET_BYTES = 1 << 20
# ... and so is the last: nothing hides the time that it takes.
LAST_BUCKET_BYTES = 4 << 20
# Of a bucket whose parameters are awaited in a forward pass, while others still travel.
OVERLAPPED_BYTES = 4 << 20
_ALIGNMENT = 64


@dataclass(frozen=True)
class Parameter:
    """A parameter as its gradient travels: its number, its elements and their dtype; ``name`` is for people."""

    index: int
    count: int
    dtype: DType
    name: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes that its gradient takes in a bucket, rounded up so that the next one begins on a cache line."""
        used = self.count * itemsize(self.dtype)
        return -(-used // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True)
class GradientPlace:
    """The place of a parameter's gradient in a bucket: ``address`` is that of its first element."""

    parameter: Parameter
    address: int


def cut(
    parameters: Sequence[Parameter], groups: Sequence[Iterable[int]] = (), most: int | None = None
) -> list[list[Parameter]]:
    """Cuts parameters, in the order given, into lists that become buckets.

    Parameters whose index is in one of ``groups`` are kept together (and apart from others) whatever their size;
    all others are joined while they share a dtype and fit into ``most`` bytes (BUCKET_BYTES). A bucket has one dtype.
    """
    group_of = {index: number for number, members in enumerate(groups) for index in members}
    grouped: dict[tuple[int, DType], list[Parameter]] = {}
    result: list[list[Parameter]] = []
    open_: list[Parameter] = []
    filled = 0
    for parameter in parameters:
        number = group_of.get(parameter.index)
        if number is not None:
            key = (number, parameter.dtype)
            if key not in grouped:
                grouped[key] = []
                result.append(grouped[key])
            grouped[key].append(parameter)
            continue
        limit = (most or BUCKET_BYTES) if result else FIRST_BUCKET_BYTES
        if not open_ or open_[-1].dtype != parameter.dtype or filled + parameter.nbytes > limit:
            open_, filled = [], 0
            result.append(open_)
        open_.append(parameter)
        filled += parameter.nbytes
    if result and result[-1] is open_:
        result[-1:] = _with_a_small_end(open_)
    return result


def _with_a_small_end(last: list[Parameter]) -> list[list[Parameter]]:
    """The parameters of the last bucket in two, if they are more than it should have."""
    sizes = list(accumulate(parameter.nbytes for parameter in reversed(last)))
    small = sum(size <= LAST_BUCKET_BYTES for size in sizes)
    return [last[:-small], last[-small:]] if 0 < small < len(last) else [last]


class Bucket:
    """Memory for the gradients of some parameters, in their order, and the state of its current round.

    ``group``: who reduces it; the memory is of the job that this group belongs to. ``name``: what errors and the
    timeline call the operation.
    """

    __slots__ = ("address", "count", "dtype", "memory", "name", "places", "waiting", "work")

    def __init__(self, parameters: Sequence[Parameter], group: Group, name: str = "") -> None:
        self.name = name
        self.dtype = parameters[0].dtype
        # An array of bytes: NumPy knows no bfloat16.
        self.memory = empty((max(sum(p.nbytes for p in parameters), 1),), np.uint8, group=group)
        self.memory[...] = 0
        self.address: int = self.memory.ctypes.data
        self.count = self.memory.size // itemsize(self.dtype)
        starts = accumulate((p.nbytes for p in parameters[:-1]), initial=self.address)
        self.places = [GradientPlace(p, start) for p, start in zip(parameters, starts, strict=True)]
        self.begin()

    def begin(self) -> None:
        """A new round: no gradient is there yet."""
        self.waiting = len(self.places)
        self.work: Work | None = None
