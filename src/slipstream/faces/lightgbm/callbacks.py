"""The two operations that LightGBM asks its network for, on a group of slipstream.

LightGBM calls them in the thread that trains. Sizes and places are in bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import DType
from slipstream.comm.collectives import addresses
from slipstream.comm.membership.group import Group

__all__ = ["ALL_GATHER", "REDUCE_SCATTER", "Callbacks"]

_POINTER, _INT, _INT32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int32
REDUCE_SCATTER = ctypes.CFUNCTYPE(
    _INT, _POINTER, _INT32, _INT, _POINTER, _POINTER, _INT, _POINTER, _INT32, _POINTER
)
ALL_GATHER = ctypes.CFUNCTYPE(_INT, _POINTER, _INT32, _POINTER, _POINTER, _INT, _POINTER, _INT32)
# Adds the bytes at the first address to those at the second; what their elements are is between LightGBM and itself.
_REDUCER = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _INT, _INT32)


class Callbacks:
    """Serves LightGBM's calls on ``group``. ``failure``: the exception that has ended one, if any has."""

    def __init__(self, group: Group) -> None:
        self.failure: BaseException | None = None
        self._group = group
        self._reducers: dict[int, Callable[[int, int, int, int], None]] = {}
        self._room: NDArray[np.uint8] = np.empty(1 << 16, dtype=np.uint8)

    def reduce_scatter(
        self,
        source: int,
        _: int,
        type_size: int,
        starts: int,
        lengths: int,
        blocks: int,
        target: int,
        _room: int,
        reducer: int,
    ) -> int:
        """``target`` = this rank's block of the reduction of all ranks' ``source``. Returns whether it failed."""
        return self._guarded(
            lambda: self._reduce_scatter(source, type_size, starts, lengths, blocks, target, reducer)
        )

    def all_gather(
        self, source: int, _: int, starts: int, lengths: int, blocks: int, target: int, _room: int
    ) -> int:
        """``target`` = the blocks of all ranks, each in its place; ``source`` is this rank's. Whether it failed."""
        return self._guarded(lambda: self._all_gather(source, starts, lengths, blocks, target))

    def _guarded(self, operation: Callable[[], None]) -> int:
        """Nothing may be raised through LightGBM: `Network` raises it when LightGBM has returned."""
        if self.failure is None:
            try:
                operation()
                return 0
            except BaseException as error:
                self.failure = error
                # The others wait for this rank, which will not come. A failed job says nothing new.
                self._group.abort(f"its training by LightGBM ended: {type(error).__name__}: {error}")
        return 1

    def _reduce_scatter(
        self, source: int, type_size: int, starts: int, lengths: int, blocks: int, target: int, reducer: int
    ) -> None:
        """Each rank gets all ranks' versions of its block, and adds them in the order of the ranks.

        So the result is the same in every run, whatever LightGBM's elements are; and a rank sends what it would in any
        other reduce-scatter: all blocks but its own.
        """
        sizes = self._checked(starts, lengths, blocks)
        rank = self._group.rank
        mine = sizes[rank]
        room = self._at_least(mine * blocks)
        addresses.all_to_all(
            self._group,
            source,
            room.ctypes.data,
            sizes,
            [mine] * blocks,
            DType.U8,
            name="LightGBM: reduce-scatter",
            keep=(self, room),
            sync=True,
        )
        if not mine:
            return
        add, first = self._reducer(reducer), room.ctypes.data
        for other in range(1, blocks):
            add(first + other * mine, first, type_size, mine)
        ctypes.memmove(target, first, mine)

    def _all_gather(self, source: int, starts: int, lengths: int, blocks: int, target: int) -> None:
        sizes = self._checked(starts, lengths, blocks)
        rank = self._group.rank
        place = target + sum(sizes[:rank])
        # LightGBM lets the two overlap. In its place in the result the block needs no other copy.
        ctypes.memmove(place, source, sizes[rank])
        addresses.all_gather(
            self._group, place, target, sizes, DType.U8, name="LightGBM: all-gather", keep=self, sync=True
        )

    def _checked(self, starts: int, lengths: int, blocks: int) -> Sequence[int]:
        """The sizes of the blocks, which follow each other: LightGBM makes no others."""
        sizes = list((_INT32 * blocks).from_address(lengths))
        begin = 0
        for place, size in zip((_INT32 * blocks).from_address(starts), sizes, strict=True):
            if place != begin:
                raise ValueError(
                    f"slipstream cannot take LightGBM's blocks: one begins at {place}, not {begin}"
                )
            begin += size
        return sizes

    def _reducer(self, reference: int) -> Callable[[int, int, int, int], None]:
        address = _POINTER.from_address(reference).value
        assert address is not None
        found = self._reducers.get(address)
        if found is None:
            found = self._reducers[address] = _REDUCER(address)
        return found

    def _at_least(self, nbytes: int) -> NDArray[np.uint8]:
        if self._room.size < nbytes:
            self._room = np.empty(max(nbytes, 2 * self._room.size), dtype=np.uint8)
        return self._room
