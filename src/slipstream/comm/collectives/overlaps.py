"""Whether the memory that an operation reads, and that it writes, may lie as it does, and be divided so. In bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from slipstream.base.dtypes import itemsize
from slipstream.comm.membership.group import Group
from slipstream.plan.direct import beginnings

__all__ = [
    "check_apart",
    "check_counts",
    "check_gather",
    "check_scatter",
    "offsets_of",
    "offsets_of_one",
    "place_of",
    "tables_of",
]


def place_of(counts: Sequence[int], rank: int, dtype: int) -> tuple[int, int]:
    """Where the rank's block begins among all, and its size: bytes."""
    return sum(counts[:rank]) * itemsize(dtype), counts[rank] * itemsize(dtype)


def offsets_of(counts: Sequence[int]) -> tuple[int, ...]:
    """The table of a buffer that holds all ranks' blocks, in elements."""
    return (0, *accumulate(counts))


def tables_of(
    operation: str, send_counts: Sequence[int], recv_counts: Sequence[int], element: int
) -> dict[str, Any]:
    """The tables of both buffers of an all-to-all, as its plan cuts the blocks. ``element``: bytes of one."""
    tables = {"in_offsets": offsets_of(send_counts), "out_offsets": offsets_of(recv_counts)}
    if operation == "all_to_all/rounds":
        return {name: beginnings(table, element) for name, table in tables.items()}
    return tables


def offsets_of_one(counts: Sequence[int], rank: int) -> tuple[int, ...]:
    """The table of a buffer that holds this rank's block alone."""
    return (0,) * (rank + 1) + (counts[rank],) * (len(counts) - rank)


def check_counts(group: Group, counts: Sequence[int], what: str) -> None:
    """ValueError unless ``counts``, which the error calls ``what``, has a number of elements for each rank."""
    if len(counts) != group.size:
        raise ValueError(f"{what} has {len(counts)} entries for {group.size} ranks")
    if min(counts) < 0:
        raise ValueError(f"{what} has a negative entry")


def check_apart(operation: str, src: int, src_bytes: int, dst: int, dst_bytes: int) -> None:
    """ValueError if the memory that ``operation`` reads and what it writes overlap."""
    if src < dst + dst_bytes and dst < src + src_bytes and src_bytes and dst_bytes:
        raise ValueError(
            f"{operation}: input and output overlap in part; give memory of their own to them, or one array for both "
            f"where the operation works in place"
        )


def check_gather(operation: str, group: Group, src: int, dst: int, counts: Sequence[int], dtype: int) -> None:
    """ValueError unless src is this rank's place in dst, or apart from it: memory of all_gather, or gather's root."""
    begin, own = place_of(counts, group.rank, dtype)
    if src != dst + begin:
        check_apart(operation, src, own, dst, sum(counts) * itemsize(dtype))


def check_scatter(group: Group, src: int, dst: int, counts: Sequence[int], dtype: int) -> None:
    """ValueError unless dst is the root's place in src, or apart from it."""
    begin, own = place_of(counts, group.rank, dtype)
    if dst != src + begin:
        check_apart("scatter", src, sum(counts) * itemsize(dtype), dst, own)
