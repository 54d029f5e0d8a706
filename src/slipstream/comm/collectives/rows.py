"""What ranks tell each other of arrays whose rows they join or divide, and whether that fits."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any
from zlib import crc32

from numpy.typing import NDArray

from slipstream.base.dtypes import name_of
from slipstream.comm.collectives.interruption import found_by_all

__all__ = ["FIELDS", "check_rows", "check_source", "head_of", "rows_of"]

FIELDS = 4  # integers of a head
_DIMENSION_BITS, _MOST_DIMENSIONS = 15, 4  # of a row whose shape is told as it is
_CHECKSUM = 1 << 62  # of any other one a checksum is told, with this bit


def rows_of(array: NDArray[Any]) -> tuple[int, int]:
    """(rows in dim 0, elements per row); a scalar is one row."""
    if array.ndim == 0:
        return 1, 1
    return array.shape[0], prod(array.shape[1:])


def head_of(array: NDArray[Any], dtype: int) -> tuple[int, int, int, int]:
    """What a rank tells of an array: rows, elements of a row, dtype, and the shape of a row as one integer."""
    if array.ndim == 1:  # nearly always
        return array.shape[0], 1, dtype, 0
    return *rows_of(array), dtype, _packed(array.shape[1:])


def _packed(shape: Sequence[int]) -> int:
    """0 for a row of no dimension."""
    if len(shape) > _MOST_DIMENSIONS or any(one >> _DIMENSION_BITS for one in shape):
        return _CHECKSUM | crc32(repr(tuple(shape)).encode())
    number = 1 if shape else 0
    for one in shape:
        number = number << _DIMENSION_BITS | one
    return number


def _row_of(packed: int) -> list[int] | None:
    """The shape of a row; None if only a checksum is known."""
    if packed & _CHECKSUM:
        return None
    dimensions: list[int] = []
    while packed > 1:
        dimensions.insert(0, packed & (1 << _DIMENSION_BITS) - 1)
        packed >>= _DIMENSION_BITS
    return dimensions


def check_rows(operation: str, heads: Sequence[Sequence[int]]) -> list[int]:
    """Every rank's number of rows. The heads begin as `head_of` makes them: ranks must agree on all but the rows."""
    first = heads[0]
    for rank, head in enumerate(heads):
        if head[1:FIELDS] != first[1:FIELDS]:
            raise found_by_all(
                ValueError(
                    f"{operation}: rank {rank} of the group has {_described('*', head)}, rank 0 has "
                    f"{_described('*', first, head)}: the dtype, and all dimensions but the first, must be the same"
                )
            )
    return [head[0] for head in heads]


def check_source(heads: Sequence[Sequence[int]], root: int, rows: int) -> None:
    """ValueError on all ranks unless the root's x, which the end of its head describes, fills all outs."""
    wanted, given = [rows, *heads[root][1:FIELDS]], list(heads[root][FIELDS:])
    if given != wanted:
        raise found_by_all(
            ValueError(
                f"scatter: the x of rank {root} of the group, the root, is {_described(given[0], given)}; the outs of "
                f"all ranks together take {_described(rows, wanted, given)}"
            )
        )


def _described(rows: int | str, head: Sequence[int], beside: Sequence[int] | None = None) -> str:
    """An array of so many rows: "float32 of shape (*, 3)". ``beside``: what it is told apart from."""
    row = _row_of(head[3])
    if row is not None:
        return f"{name_of(head[2])} of shape ({', '.join(map(str, [rows, *row]))})"
    alike = beside is not None and beside[1:3] == head[1:3]
    return f"{rows} rows of {head[1]} elements of {name_of(head[2])}{' in another shape' if alike else ''}"
