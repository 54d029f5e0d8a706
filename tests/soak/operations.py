"""What the ranks of a soak do: operations and data that every rank draws alike from a seed, by NumPy alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "comm"))
from expected import blocks, numpy_dtype
from random_rank import FREE, MEETING, Array, Data, Operation

from slipstream import _core
from slipstream.base.dtypes import DType, Op

DTYPES = list(DType)
OPS = {dtype: [op for op in Op if _core.reduces(dtype, op)] for dtype in DTYPES}
COARSE = (DType.F8E4M3, DType.F8E5M2)
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
MOST_BYTES = 4 << 20


class SeededData(Data):
    """Contributions of any rank to any operation, drawn from the seed.

    Where they are reduced they are whole numbers so small that every result is exact, whatever the order of the
    ranks. Where they are only carried they are any bits.
    """

    def __init__(self, seed: Sequence[int]) -> None:
        self.seed = tuple(seed)

    def of(self, o: Operation, member: int, count: int | None = None) -> Array:
        """What group rank ``member`` puts in; not to be written to."""
        count = o.count if count is None else count
        rng = np.random.default_rng((*self.seed, o.number, member))
        dtype = numpy_dtype(o.dtype)
        if o.dtype is DType.BOOL:
            return rng.integers(0, 2, count).astype(bool)
        if o.kind not in REDUCING:
            return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
        if o.dtype is DType.Q8:
            return blocks(int(rng.integers(1000)), count)
        most = 2 if o.dtype in COARSE and o.op in (Op.SUM, Op.AVG) else 8
        values = rng.integers(1, 3, count) if o.op is Op.PROD else rng.integers(0, most, count)
        signed = dtype.kind in "ifc" and o.op is not Op.PROD
        if signed:
            values = values * rng.choice(
                [-1, 1]
            )  # one sign for all: no zero is ever negative in one order alone
        if dtype.kind == "c":
            return (values + 1j * values[::-1]).astype(dtype)
        return (values + 0.0).astype(dtype) if dtype.kind == "f" else values.astype(dtype)


def draw(rng: np.random.Generator, number: int, free: bool, sizes: Sequence[int]) -> Operation:
    """One operation on one of the groups, whose sizes are given. ``free``: of those that need no meeting first."""
    kinds = FREE + MEETING if not free else FREE
    dtype = DTYPES[rng.integers(len(DTYPES))]
    group = int(rng.integers(len(sizes)))
    root, other = rng.permutation(sizes[group])[:2]
    most = MOST_BYTES // numpy_dtype(dtype).itemsize
    return Operation(
        number=number,
        kind=kinds[rng.integers(len(kinds))],
        group=group,
        dtype=dtype,
        op=OPS[dtype][rng.integers(len(OPS[dtype]))],
        count=int(rng.integers(64)) if rng.random() < 0.2 else int(most ** rng.random()),
        root=int(root),
        other=int(other),
        tag=int(rng.integers(3)),
        in_place=bool(rng.random() < 0.3),
        shared=bool(rng.random() < 0.1),
        async_op=free or bool(rng.random() < 0.6),
    )


def batch(rng: np.random.Generator, first: int, sizes: Sequence[int]) -> tuple[bool, list[Operation]]:
    """Operations from number ``first`` on; with True those whose groups may be interleaved in any way."""
    free = bool(rng.random() < 0.4)
    return free, [draw(rng, first + i, free, sizes) for i in range(int(rng.integers(1, 13)))]
