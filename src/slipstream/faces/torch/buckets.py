"""Buckets: the memory in which gradients travel, cut so that every rank cuts alike.

A bucket is one piece of memory that other processes of the host can map, so an all-reduce on it copies
nothing. Where a gradient travels as it is, its place in the bucket then *becomes* the gradient: it is copied
in when backward has made it, and never out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from slipstream import comm as _comm

__all__ = ["Bucket", "Cell", "cut"]

BUCKET_BYTES = 32 << 20
# The first bucket is small, so that communication starts while backward has only begun.
FIRST_BUCKET_BYTES = 1 << 20
_ALIGNMENT = 64


@dataclass(frozen=True)
class Cell:
    """One parameter's place: index of the parameter, shape, and the dtype in which it travels."""

    index: int
    shape: torch.Size
    wire: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes it takes in a bucket, rounded up so that the next one begins on a cache line."""
        used = self.shape.numel() * self.wire.itemsize
        return -(-used // _ALIGNMENT) * _ALIGNMENT


def cut(cells: Sequence[Cell], groups: Sequence[Iterable[int]] = ()) -> list[list[Cell]]:
    """Cuts cells, in the order given, into lists that become buckets.

    Cells whose index is in one of ``groups`` are kept together (and apart from others) whatever their size;
    all others are joined while they share a dtype and fit into BUCKET_BYTES. A bucket has one dtype.
    """
    group_of = {index: number for number, members in enumerate(groups) for index in members}
    grouped: dict[tuple[int, torch.dtype], list[Cell]] = {}
    result: list[list[Cell]] = []
    open_: list[Cell] = []
    filled = 0
    for cell in cells:
        number = group_of.get(cell.index)
        if number is not None:
            key = (number, cell.wire)
            if key not in grouped:
                grouped[key] = []
                result.append(grouped[key])
            grouped[key].append(cell)
            continue
        limit = BUCKET_BYTES if result else FIRST_BUCKET_BYTES
        if not open_ or open_[-1].wire != cell.wire or filled + cell.nbytes > limit:
            open_, filled = [], 0
            result.append(open_)
        open_.append(cell)
        filled += cell.nbytes
    return result


class Bucket:
    """Memory for the gradients of some parameters, and the state of its current round."""

    __slots__ = ("_memory", "cells", "flat", "name", "views", "waiting", "work")

    def __init__(self, cells: Sequence[Cell], name: str = "") -> None:
        self.cells = list(cells)
        self.name = name
        wire = cells[0].wire
        # An array of bytes: NumPy knows no bfloat16.
        self._memory = _comm.empty((max(sum(cell.nbytes for cell in cells), 1),), np.uint8)
        self._memory[...] = 0
        memory = torch.from_numpy(self._memory)
        self.flat = memory[: memory.numel() // wire.itemsize * wire.itemsize].view(wire)
        self.views = self._place()
        self.waiting = len(self.cells)
        self.work: Any = None

    def _place(self) -> list[torch.Tensor]:
        views = []
        start = 0
        for cell in self.cells:
            count = cell.shape.numel()
            views.append(self.flat[start : start + count].view(cell.shape))
            start += cell.nbytes // cell.wire.itemsize
        return views
