"""One rank of the conformance test: every collective, dtype, op and size against NumPy.

    conformance_rank.py [--full]    --full: every dtype and op also at 1 Mi + 3 numbers

Inputs are small whole numbers, so that every sum is exact in every dtype and the results must be equal to the bit.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from expected import data, numbers_of, quantized, reduce_arrays, same

import slipstream
from slipstream import _core
from slipstream.base.dtypes import DType, Op

SMALL = (0, 1, 7, 1023)
LARGE = (1 << 20) + 3
LARGE_BLOCKS = (
    LARGE // 64
)  # of block-int8: as many numbers; a million blocks of 8 ranks, some times over, are 20 GB
FULL = "--full" in sys.argv
LARGE_CASES = {
    (DType.F32, Op.SUM),
    (DType.F16, Op.AVG),
    (DType.I64, Op.MAX),
    (DType.BF16, Op.SUM),
    (DType.BOOL, Op.BOR),
}


def reduced(n: int, count: int, dtype: DType, op: Op) -> np.ndarray[Any, Any]:
    return reduce_arrays([data(r, count, dtype, op) for r in range(n)], dtype, op)


def identical_everywhere(what: str, got: np.ndarray[Any, Any]) -> None:
    sums = slipstream.all_gather(np.array([zlib.crc32(got.tobytes())], dtype=np.int64))
    assert len(set(sums.tolist())) == 1, f"{what}: ranks hold different bits: {sums}"


def large(dtype: DType) -> int:
    return LARGE_BLOCKS if dtype == DType.Q8 else LARGE


def sizes(dtype: DType, op: Op | None) -> Iterator[int]:
    yield from SMALL
    if FULL or op is None or (dtype, op) in LARGE_CASES:
        yield large(dtype)


def reductions(rank: int, n: int) -> None:
    for dtype in DType:
        for op in Op:
            if not _core.reduces(dtype, op):
                continue
            for count in sizes(dtype, op):
                what = f"{dtype.name} {op.name} x {count}"
                mine, expected = data(rank, count, dtype, op), reduced(n, count, dtype, op)
                got = slipstream.all_reduce(mine, op)
                same(f"all_reduce {what}", got, expected)
                identical_everywhere(what, got)
                place = mine.copy()
                slipstream.all_reduce(place, op, out=place)
                same(f"all_reduce in place {what}", place, expected)
                rows = [count // n + (r < count % n) for r in range(n)]
                first = sum(rows[:rank])
                own = expected[first : first + rows[rank]]
                same(f"reduce_scatter {what}", slipstream.reduce_scatter(mine, op), own)
                root = count % n
                got = slipstream.reduce(mine, root, op)
                assert (got is not None) == (rank == root)
                if got is not None:
                    same(f"reduce {what}", got, expected)


def movements(rank: int, n: int) -> None:
    for dtype in DType:
        for count in (*SMALL, large(dtype)) if FULL or dtype in (DType.F32, DType.U8, DType.C128) else SMALL:
            what = f"{dtype.name} x {count}"
            mine = data(rank, count, dtype)
            every = [data(r, count, dtype) for r in range(n)]
            root = (count + 1) % n
            same(f"all_gather {what}", slipstream.all_gather(mine), np.concatenate(every))
            same(f"broadcast {what}", slipstream.broadcast(mine, root), every[root])
            got = slipstream.gather(mine, root)
            if rank == root:
                same(f"gather {what}", got, np.concatenate(every))
            ragged = [mine[: count * (r + 1) // n] for r in range(n)][rank]
            joined = np.concatenate([every[r][: count * (r + 1) // n] for r in range(n)])
            same(f"ragged all_gather {what}", slipstream.all_gather(ragged), joined)
            got = slipstream.gather(ragged, root)
            if rank == root:
                same(f"ragged gather {what}", got, joined)
            out = np.empty(len(ragged), dtype=mine.dtype)
            first = sum(count * (r + 1) // n for r in range(rank))
            slipstream.scatter(joined, root, out=out)
            same(f"scatter {what}", out, joined[first : first + len(out)])
            splits = [(count * (p + rank + 1)) // (4 * n) for p in range(n)]
            starts = np.cumsum([0, *splits])
            source = np.resize(mine, sum(splits)) if count else mine
            got = slipstream.all_to_all(source, splits=splits)
            parts = []
            for r in range(n):
                theirs = [(count * (p + r + 1)) // (4 * n) for p in range(n)]
                begin = sum(theirs[:rank])
                whole = np.resize(every[r], sum(theirs)) if count else every[r]
                parts.append(whole[begin : begin + theirs[rank]])
            same(f"all_to_all {what}", got, np.concatenate(parts))
            assert starts[-1] == len(source)
            if n > 1:
                got = np.empty_like(mine)
                receiving = slipstream.recv(got, (rank - 1) % n, tag=count, async_op=True)
                slipstream.send(mine, (rank + 1) % n, tag=count)
                receiving.wait()
                same(f"send/recv {what}", got, every[(rank - 1) % n])


def floats(rank: int, n: int) -> None:
    """Numbers that round: close to NumPy, and the same bits on every rank and in every run."""
    for dtype, tolerance in (("float64", 1e-13), ("float32", 2e-6), ("float16", 4e-3)):
        inputs = [np.random.default_rng(r).standard_normal(70_001).astype(dtype) for r in range(n)]
        got = slipstream.all_reduce(inputs[rank])
        again = slipstream.all_reduce(inputs[rank])
        exact = np.sum([x.astype(np.float64) for x in inputs], axis=0)
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=0, atol=tolerance * 4 * n)
        identical_everywhere(dtype, got)
        same(f"{dtype} in a second run", again, got)


def blocks(rank: int, n: int) -> None:
    """Block-int8 that rounds: each of at most n sums moves a number by half a unit of its block."""
    for count in (3, 1500):
        inputs = [
            quantized(np.random.default_rng(r).standard_normal((count, 64)).astype(np.float32))
            for r in range(n)
        ]
        exact = np.sum([numbers_of(x).astype(np.float64) for x in inputs], axis=0)
        unit = np.sum([np.abs(numbers_of(x)).max(axis=1) for x in inputs], axis=0) / 127
        for op, divisor in ((Op.SUM, 1), (Op.AVG, n)):
            got = slipstream.all_reduce(inputs[rank], op)
            wrong = np.abs(numbers_of(got) * divisor - exact)
            assert (wrong <= 0.505 * n * unit[:, None]).all(), f"{op.name} x {count}: {wrong.max()}"
            identical_everywhere(f"blocks, {op.name}", got)
            same(f"blocks in a second run, {op.name}", slipstream.all_reduce(inputs[rank], op), got)
        if n == 2:  # one sum, in f32
            total = numbers_of(inputs[0]) + numbers_of(inputs[1])
            same("blocks of two", slipstream.all_reduce(inputs[rank]), quantized(total))


def scales(rank: int, n: int) -> None:
    mine = data(rank, 5000, DType.F32)
    expected = np.sum(
        [data(r, 5000, DType.F32) * np.float32(0.5) for r in range(n)], axis=0, dtype=np.float32
    )
    same(
        "prescale, postscale",
        slipstream.all_reduce(mine, prescale=0.5, postscale=4.0),
        expected * np.float32(4),
    )
    shared = slipstream.empty((100, 50))
    shared[...] = mine.reshape(100, 50)
    slipstream.all_reduce(shared, out=shared)
    total = np.sum([data(r, 5000, DType.F32) for r in range(n)], axis=0, dtype=np.float32)
    same("shared memory", shared, total.reshape(100, 50))


def shared_memory(rank: int, n: int) -> None:
    """Buffers of slipstream.empty, where ranks of a host read and write each other's memory."""
    every = [data(r, LARGE, DType.F32) for r in range(n)]
    total = np.sum(every, axis=0, dtype=np.float32)
    place, source = slipstream.empty(LARGE), slipstream.empty(LARGE)
    joined = slipstream.empty(LARGE * n)
    for _ in range(3):
        place[...] = source[...] = every[rank]
        slipstream.all_reduce(place, out=place)
        same("all_reduce in place in shared memory", place, total)
        slipstream.all_reduce(source, out=place)
        same("all_reduce in shared memory", place, total)
        slipstream.all_reduce(every[rank], out=place)
        same("all_reduce from private into shared memory", place, total)
        slipstream.broadcast(source, n - 1, out=place)
        same("broadcast in shared memory", place, every[n - 1])
        slipstream.all_gather(source, out=joined)
        same("all_gather in shared memory", joined, np.concatenate(every))
        rows = [LARGE // n + (r < LARGE % n) for r in range(n)]
        own = slipstream.empty(rows[rank])
        slipstream.reduce_scatter(source, out=own)
        same("reduce_scatter in shared memory", own, total[sum(rows[:rank]) :][: rows[rank]])
        same("the source is untouched", source, every[rank])


def main() -> None:
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    reductions(rank, n)
    movements(rank, n)
    floats(rank, n)
    blocks(rank, n)
    scales(rank, n)
    shared_memory(rank, n)
    slipstream.barrier()
    slipstream.shutdown()


main()
