"""What ranks put into a collective, and what NumPy says must come out.

Every rank has a table of values; its vector repeats the table, from a place that changes from batch to batch,
so that nothing old or misplaced passes for right. The table is as long as a prime number: blocks of a vector
differ wherever they are cut. A reduction of such vectors repeats the reduction of the tables.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PERIOD",
    "Section",
    "Values",
    "expected_sections",
    "fill",
    "input_sections",
    "numpy_dtype",
    "wrong_elements",
]

Array = NDArray[Any]

PERIOD = 65521  # the largest prime below 2**16
REDUCED = -1  # the "rank" whose table is the reduction of all
_MANTISSA = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
# The largest number in a table: of inputs to reductions (sums of many must be exact), of others (all differ).
_TOP = {"float64": 251, "float32": 251, "float16": 13, "bfloat16": 5, "int32": 251, "int64": 251}
_TOP_MOVED = {"float16": 2048, "bfloat16": 256, "int8": 127, "uint8": 255}
# Sums of a batch grow from here; a power of two changes no digit.
_SCALE = {"float64": 2.0**-900, "float32": 2.0**-100, "float16": 2.0**-13, "bfloat16": 2.0**-100}
_ROUNDED = 0.05  # relative; where sums are rounded, no batch is so long that they may be off by more


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of that name; ImportError when bfloat16 is asked for without ml_dtypes."""
    if name == "bfloat16":
        ml_dtypes: Any = importlib.import_module("ml_dtypes")
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)


@dataclass(frozen=True)
class Section:
    """``length`` elements of a buffer from ``start`` on: those of ``rank``'s vector from ``offset`` on."""

    start: int
    length: int
    rank: int
    offset: int


def input_sections(collective: str, rank: int, root: int, elements: int, count: int) -> list[Section]:
    """What ``rank`` puts in; nothing where only the root does."""
    if collective in ("broadcast", "scatter") and rank != root:
        return []
    length = count if collective in ("all_gather", "gather") else elements
    return [Section(0, length, rank, 0)]


def expected_sections(
    collective: str, rank: int, ranks: int, root: int, elements: int, count: int
) -> list[Section]:
    """What ``rank`` must get; nothing where only the root gets something."""
    if collective in ("reduce", "gather") and rank != root:
        return []
    if collective in ("all_reduce", "reduce"):
        return [Section(0, elements, REDUCED, 0)]
    if collective == "reduce_scatter":
        return [Section(0, count, REDUCED, rank * count)]
    if collective in ("all_gather", "gather"):
        return [Section(r * count, count, r, 0) for r in range(ranks)]
    if collective == "all_to_all":
        return [Section(r * count, count, r, rank * count) for r in range(ranks)]
    if collective == "broadcast":
        return [Section(0, elements, root, 0)]
    if collective == "scatter":
        return [Section(0, count, root, rank * count)]
    return [Section(0, elements, (rank - 1) % ranks, 0)]  # send_recv


@dataclass
class Values:
    """The tables of a collective among ``ranks`` ranks; ``op`` is None where it does not reduce.

    ``chain``: how many sums follow each other in one buffer (1 unless each call has its own), so that every
    call but the first multiplies what is there by the number of ranks.
    """

    dtype: np.dtype[Any]
    ranks: int
    op: str | None = None
    chain: int = 1
    _tables: dict[int, Array] = field(default_factory=dict, repr=False)

    def table(self, rank: int) -> Array:
        """The table of ``rank``, or of the reduction of all (`REDUCED`); PERIOD elements."""
        if rank not in self._tables:
            self._tables[rank] = self._reduced() if rank == REDUCED else self._of(rank).astype(self.dtype)
        return self._tables[rank]

    @property
    def tolerance(self) -> float:
        """The relative error that the rounding of sums may cause; 0 where every sum is exact."""
        name = self.dtype.name
        if self.op not in ("sum", "avg") or name not in _MANTISSA:
            return 0.0
        growth = self.chain if self.op == "sum" else 1
        power_of_two = self.ranks & (self.ranks - 1) == 0
        digits = math.log2(_TOP[name] * self.ranks) + (0 if power_of_two else growth * math.log2(self.ranks))
        if digits <= _MANTISSA[name] and (power_of_two or self.op == "sum"):
            return 0.0
        return growth * self.ranks * 2.0 ** (1 - _MANTISSA[name])

    def longest_chain(self) -> int:
        """How many sums may follow each other in one buffer before they leave the dtype's range, or blur."""
        name = self.dtype.name
        if self.ranks < 2:
            return 1 << 20
        if name not in _MANTISSA:
            room = math.log2(float(np.iinfo(self.dtype).max) / (_top(name) * self.ranks))
            return max(1, 1 + int(room / math.log2(self.ranks)))
        largest = 128.0 if name == "bfloat16" else float(np.finfo(self.dtype).maxexp)
        room = largest - 1 - math.log2(_SCALE[name] * _TOP[name] * self.ranks)
        chain = max(1, 1 + int(room / math.log2(self.ranks)))
        while chain > 1 and Values(self.dtype, self.ranks, "sum", chain).tolerance > _ROUNDED:
            chain -= 1
        return chain

    def _of(self, rank: int) -> Array:
        name, op = self.dtype.name, self.op
        random = np.random.default_rng(1000 + rank)
        if op is None:
            return random.integers(1, _TOP_MOVED.get(name, PERIOD), size=PERIOD, endpoint=True)
        if op == "prod":  # of many factors, still far from all limits
            factors: Array = np.array([1.0, -1.0, 2.0, 0.5] if name in _MANTISSA else [1, 3])
            return factors[random.integers(factors.size, size=PERIOD)]
        if op in ("band", "bor", "bxor"):
            most = int(np.iinfo(self.dtype).max)
            a, b, c = random.integers(1, most, size=(3, PERIOD), endpoint=True, dtype=np.int64)
            found: dict[str, Array] = {"band": a | b | c, "bor": a & b & c, "bxor": a}
            return found[op]
        numbers = random.integers(1, _top(name), size=PERIOD, endpoint=True)
        return numbers * _SCALE[name] if name in _SCALE else numbers

    def _reduced(self) -> Array:
        wide = np.dtype(np.float64 if self.dtype.name in _MANTISSA else np.int64)
        combine = _COMBINE[str(self.op)]
        total: Array = self.table(0).astype(wide)
        for rank in range(1, self.ranks):
            total = combine(total, self.table(rank).astype(wide))
        if self.op == "avg":
            total = total / self.ranks
        if self.op == "sum":
            for _ in range(self.chain - 1):
                total *= self.ranks
        return total.astype(self.dtype)  # integers of fewer bits: the lowest bits, as in all libraries


def _top(name: str) -> int:
    return _TOP.get(name, 5)


_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def fill(array: Array, sections: list[Section], values: Values, shift: int) -> None:
    """Writes the sections into ``array`` and zeros elsewhere; ``shift`` is where vectors begin in this batch."""
    array[...] = 0
    for section in sections:
        table = values.table(section.rank)
        for part, repeated in _parts(array, section, table, shift):
            part[...] = repeated


def wrong_elements(array: Array, sections: list[Section], values: Values, shift: int) -> tuple[int, str]:
    """How many elements of the sections are not what they must be, and the first of them in words."""
    count, first = 0, ""
    for section in sections:
        tolerance = values.tolerance if section.rank == REDUCED else 0.0
        at = section.start
        for part, wanted in _parts(array, section, values.table(section.rank), shift):
            wrong = _differs(part, wanted, tolerance)
            found = int(np.count_nonzero(wrong))
            if found and not count:
                index = int(np.argmax(wrong))
                right = np.broadcast_to(wanted, part.shape).reshape(-1)[index]
                first = f"element {at + index} of {array.size} is {part.reshape(-1)[index]!s}, not {right!s}"
            count += found
            at += part.size
    return count, first


def _differs(part: Array, wanted: Array, tolerance: float) -> Array:
    if tolerance == 0:
        return np.asarray(part != wanted)  # NaN differs from all
    right = wanted.astype(np.float64)
    return ~(np.abs(part.astype(np.float64) - right) <= tolerance * np.abs(right))


def _parts(array: Array, section: Section, table: Array, shift: int) -> Iterator[tuple[Array, Array]]:
    """Views of the section, each with what it must hold: all whole periods, then the rest."""
    rolled = np.roll(table, -((section.offset + shift) % PERIOD))
    mine = array[section.start : section.start + section.length]
    whole = section.length // PERIOD * PERIOD
    if whole:
        yield mine[:whole].reshape(-1, PERIOD), rolled
    if whole < section.length:
        yield mine[whole:], rolled[: section.length - whole]
