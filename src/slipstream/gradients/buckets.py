"""Buckets: the memory in which gradients travel, cut so that every rank cuts alike.

A bucket is one range of memory that other processes of the host can map, so an all-reduce on it copies
nothing. Where a gradient travels as it is, its place in the bucket can then *become* the gradient: it is copied
in when backward has made it, and never out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import DType, itemsize
from slipstream.comm.collectives.buffers import empty
from slipstream.comm.membership.group import Group
from slipstream.gradients.compression import EXACT, Way

__all__ = ["Bucket", "GradientPlace", "Parameter", "bucket_of", "cut"]

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
    """A parameter as its gradient travels: its number, its elements and their dtype in a bucket, and the ``way``.

    ``shape`` is the parameter's own; ``name`` is for people.
    """

    index: int
    count: int
    dtype: DType
    name: str = ""
    shape: tuple[int, ...] = ()
    way: Way = EXACT

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
    parameters: Sequence[Parameter],
    groups: Sequence[Iterable[int]] = (),
    most: int | None = None,
    missing: Collection[int] = (),
) -> list[list[Parameter]]:
    """Cuts parameters, in the order in which their gradients become ready, into lists that become buckets.

    A bucket has one dtype and one way. Parameters whose index is in one of ``groups`` are kept together (and apart from
    others) whatever their size; all others are joined until ``most`` bytes (BUCKET_BYTES) are full. Those whose index
    is in ``missing`` come last, have no gradients, and hold up no bucket of others. Buckets are in the order in which
    they become full, so that none waits for another that is begun before it and filled later.
    """
    group_of = {index: number for number, members in enumerate(groups) for index in members}
    open_: dict[tuple[int | None, DType, Way, bool], list[Parameter]] = {}
    filled: dict[int, int] = {}  # bytes, by the id of the list
    found: list[list[Parameter]] = []
    for parameter in parameters:
        number = group_of.get(parameter.index)
        key = (number, parameter.dtype, parameter.way, number is None and parameter.index in missing)
        bucket = open_.get(key)
        limit = (most or BUCKET_BYTES) if bucket is None or bucket is not found[0] else FIRST_BUCKET_BYTES
        if bucket is None or (number is None and filled[id(bucket)] + parameter.nbytes > limit):
            bucket = open_[key] = []
            found.append(bucket)
        bucket.append(parameter)
        filled[id(bucket)] = filled.get(id(bucket), 0) + parameter.nbytes
    comes_last = next((one for one in reversed(parameters) if one.index not in missing), None)
    end = next((one for one in found if one[-1] is comes_last), None)
    if end is not None and end[-1].index not in group_of:
        found = [one for one in found if one is not end] + _with_a_small_end(end)
    last = {bucket[-1].index: bucket for bucket in found}
    return [last[parameter.index] for parameter in parameters if parameter.index in last]


def _with_a_small_end(last: list[Parameter]) -> list[list[Parameter]]:
    """The parameters of the last bucket in two, if they are more than it should have; one alone may be more."""
    sizes = list(accumulate(parameter.nbytes for parameter in reversed(last)))
    small = max(1, sum(size <= LAST_BUCKET_BYTES for size in sizes))
    return [last[:-small], last[-small:]] if small < len(last) else [last]


class Bucket:
    """Memory in which the gradients of some parameters travel: all of one dtype, and one way.

    ``memory``: flat bytes, of which ``places`` has the parameters' parts, in their order. ``name``: what errors and the
    timeline call the operation. ``waiting``: how many of the gradients are not there yet.
    """

    __slots__ = ("address", "count", "dtype", "memory", "name", "places", "waiting", "way")

    def __init__(self, memory: NDArray[np.uint8], places: Sequence[GradientPlace], name: str = "") -> None:
        self.name = name
        self.memory = memory
        self.places = list(places)
        self.dtype, self.way = self.places[0].parameter.dtype, self.places[0].parameter.way
        self.address: int = memory.ctypes.data
        self.count = memory.size // itemsize(self.dtype)
        self.begin()

    def begin(self) -> None:
        """A new round: no gradient is there yet."""
        self.waiting = len(self.places)

    def fill(self, element: NDArray[np.uint8]) -> None:
        """Puts an element, given by its bytes, everywhere."""
        self.memory[: self.count * element.size].reshape(-1, element.size)[...] = element

    def floats(self) -> NDArray[np.float32]:
        """All of its numbers; only if they are float32."""
        assert self.dtype == DType.F32
        return self.memory[: 4 * self.count].view(np.float32)

    def gradients(self) -> list[tuple[Parameter, NDArray[np.float32]]]:
        """Each parameter, and its gradient as a flat array; only if they are float32."""
        numbers = self.floats()
        starts = [(place.address - self.address) // 4 for place in self.places]
        return [
            (place.parameter, numbers[start : start + place.parameter.count])
            for place, start in zip(self.places, starts, strict=True)
        ]


def bucket_of(parameters: Sequence[Parameter], group: Group, name: str = "") -> Bucket:
    """A bucket for these parameters, in their order, all zeros. ``group``: the memory is of the job it belongs to."""
    # An array of bytes: NumPy knows no bfloat16.
    memory = empty((max(sum(p.nbytes for p in parameters), 1),), np.uint8, group=group)
    memory[...] = 0
    starts = accumulate((p.nbytes for p in parameters[:-1]), initial=memory.ctypes.data)
    return Bucket(
        memory, [GradientPlace(p, start) for p, start in zip(parameters, starts, strict=True)], name
    )
