"""What each collective is to compute: inputs and tables for all ranks, and the outputs to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.plan.direct import QUEUED_BYTES, beginnings
from slipstream.plan.registry import ROOTED, algorithms, build, collectives
from slipstream.plan.simulate import equal_cut
from slipstream.plan.steps import Plan

ALGORITHMS = [(collective, name) for collective in collectives() for name in algorithms(collective)]
NOT_IN_PLACE = ("pairwise", "rounds")
BY_HOSTS = ("hierarchical", "hierarchical_halving")
POSTSCALE = 3


@dataclass
class Case:
    """A collective on given data. Tables are as for ``simulate``; ``expected`` without the post-scale."""

    inputs: list[NDArray[Any]]
    in_tables: list[list[int]]
    out_tables: list[list[int]]
    expected: list[NDArray[Any]]


def plans_of(
    collective: str, algorithm: str, size: int, root: int = 0, hosts: Sequence[int] | None = None
) -> list[Plan]:
    """Return the plans of all ranks."""
    return [build(collective, algorithm, rank, size, root, hosts) for rank in range(size)]


def roots_of(collective: str, size: int) -> range:
    """Return the roots worth a test."""
    return range(size) if collective in ROOTED else range(1)


def table(sizes: Sequence[int]) -> list[int]:
    """Return the offsets of blocks of these sizes."""
    return [0, *accumulate(sizes)]


def only(sizes: Sequence[int], block: int) -> list[int]:
    """Return the table in which only ``block`` has its size."""
    return table([n if b == block else 0 for b, n in enumerate(sizes)])


def integers(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Random 64-bit integers: a sum of them is right, modulo 2**64, only if each was added exactly once."""
    return rng.integers(-(2**63), 2**63 - 1, count, dtype=np.int64)


def make(
    collective: str, size: int, blocks: int, root: int, sizes: NDArray[np.int64], rng: np.random.Generator
) -> Case:
    """Return a case: element counts are from ``sizes``, [size, size], of which only all_to_all uses all."""
    counts = [int(n) for n in sizes[0]]
    total = sum(counts)
    full, nothing = equal_cut(total, blocks), [0] * (blocks + 1)
    whole = table(counts)
    if collective == "all_to_all":
        parts = [[integers(rng, int(n)) for n in row] for row in sizes]
        in_parts = blocks == 2 * size  # short beginnings, of which there is a rest
        cut = (lambda offsets: list(beginnings(offsets, QUEUED_BYTES // 2))) if in_parts else list
        return Case(
            [np.concatenate(row) for row in parts],
            [cut(table([len(part) for part in row])) for row in parts],
            [cut(table([len(row[rank]) for row in parts])) for rank in range(size)],
            [np.concatenate([row[rank] for row in parts]) for rank in range(size)],
        )
    if collective in ("all_gather", "gather"):
        own = [integers(rng, n) for n in counts]
        gathered, empty = np.concatenate(own), np.zeros(0, np.int64)
        has_all = [collective == "all_gather" or rank == root for rank in range(size)]
        return Case(
            own,
            [only(counts, rank) for rank in range(size)],
            [whole if has else nothing for has in has_all],
            [gathered if has else empty for has in has_all],
        )
    if collective in ("broadcast", "scatter"):
        data, empty = integers(rng, total), np.zeros(0, np.int64)
        source = full if collective == "broadcast" else whole
        parts = [data[whole[rank] : whole[rank + 1]] for rank in range(size)]
        return Case(
            [data if rank == root else empty for rank in range(size)],
            [source if rank == root else nothing for rank in range(size)],
            [full if collective == "broadcast" else only(counts, rank) for rank in range(size)],
            [data] * size if collective == "broadcast" else parts,
        )
    inputs = [integers(rng, total) for _ in range(size)]
    summed = np.sum(inputs, axis=0, dtype=np.int64)
    if collective == "reduce_scatter":
        parts = [summed[whole[rank] : whole[rank + 1]] for rank in range(size)]
        return Case(inputs, [whole] * size, [only(counts, rank) for rank in range(size)], parts)
    if collective == "reduce":
        at_root = [rank == root for rank in range(size)]
        empty = np.zeros(0, np.int64)
        return Case(
            inputs,
            [full] * size,
            [full if here else nothing for here in at_root],
            [summed if here else empty for here in at_root],
        )
    return Case(inputs, [full] * size, [full] * size, [summed] * size)
