"""What ranks tell each other of arrays whose rows they join or divide, and whether that fits."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any
from zlib import crc32

from numpy.typing import NDArray

from slipstream.base.dtypes import DType
from slipstream.comm.collectives.interruption import found_by_all

__all__ = ["FIELDS", "check_rows", "check_source", "head_of", "rows_of"]

FIELDS = 4  # integers of a head


def rows_of(array: NDArray[Any]) -> tuple[int, int]:
    """(rows in dim 0, elements per row); a scalar is one row."""
    if array.ndim == 0:
        return 1, 1
    return array.shape[0], prod(array.shape[1:])


def head_of(array: NDArray[Any], dtype: int) -> tuple[int, int, int, int]:
    """What a rank tells of an array: rows, elements of a row, dtype, and a checksum of a row's shape."""
    if array.ndim == 1:  # nearly always
        return array.shape[0], 1, dtype, 0
    return *rows_of(array), dtype, crc32(repr(array.shape[1:]).encode()) if array.ndim > 1 else 0


def check_rows(operation: str, heads: Sequence[Sequence[int]]) -> list[int]:
    """Every rank's number of rows. The heads begin as `head_of` makes them: ranks must agree on all but the rows."""
    first = heads[0]
    for rank, head in enumerate(heads):
        if head[1:FIELDS] != first[1:FIELDS]:
            raise found_by_all(
                ValueError(
                    f"{operation}: rank {rank} of the group has rows of {_described(head)}, rank 0 of "
                    f"{_described(first, head)}: dtypes, and all dimensions but the first, must agree"
                )
            )
    return [head[0] for head in heads]


def check_source(heads: Sequence[Sequence[int]], root: int, rows: int) -> None:
    """ValueError on all ranks unless the root's x, which the end of its head describes, fills all outs."""
    wanted, given = [rows, *heads[root][1:FIELDS]], list(heads[root][FIELDS:])
    if given != wanted:
        raise found_by_all(
            ValueError(
                f"scatter: the root's x has {given[0]} rows of {_described(given)}, the outs of all ranks have {rows} "
                f"of {_described(wanted, given)}"
            )
        )


def _described(head: Sequence[int], beside: Sequence[int] | None = None) -> str:
    """``beside``: what it is told apart from."""
    alike = beside is not None and beside[1:3] == head[1:3]
    return f"{head[1]} elements of {DType(head[2]).name}{' in another shape' if alike else ''}"
