"""One rank of a job with reducers, whose ranks share hosts. hosts_rank.py values | rounds | loss | mismatch | shrink

Inputs are small whole numbers, so that every sum is exact in every dtype and the results must be equal to the bit.
The largest are cut into several stretches.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "comm"))
from expected import data, numbers_of, quantized, reduce_arrays, same

import slipstream
from slipstream import _core
from slipstream.base.dtypes import DType, Op, itemsize
from slipstream.base.errors import Mismatch, PeerLost
from slipstream.comm.membership import job

SPLIT = 32 << 10  # bytes from which reducers take a part


def states() -> list[dict[str, Any]]:
    return job.current().reducers.states()


def expected(count: int, dtype: DType, op: Op, size: int) -> np.ndarray[Any, Any]:
    return reduce_arrays([data(r, count, dtype, op) for r in range(size)], dtype, op)


def same_on_all(what: str, got: np.ndarray[Any, Any]) -> None:
    sums = slipstream.all_gather(np.array([zlib.crc32(got.tobytes())], dtype=np.int64))
    assert len(set(sums.tolist())) == 1, f"{what}: ranks hold different bits: {sums}"


def check(rank: int, size: int, count: int, dtype: DType, op: Op) -> None:
    what = f"{dtype.name} {op.name} x {count}"
    mine, total = data(rank, count, dtype, op), expected(count, dtype, op, size)
    same(what, slipstream.all_reduce(mine, op), total)
    same(f"the input of {what}", mine, data(rank, count, dtype, op))
    slipstream.all_reduce(mine, op, out=mine)
    same(f"in place {what}", mine, total)


def values(rank: int, size: int) -> None:
    for dtype in DType:
        for op in Op:
            if _core.reduces(dtype, op):
                check(rank, size, SPLIT // itemsize(dtype) + 3, dtype, op)
    for dtype, op, count in (
        (DType.F32, Op.SUM, SPLIT // 4),
        (DType.F32, Op.AVG, 2_600_003),
        (DType.BF16, Op.SUM, 2_300_001),
        (DType.F32, Op.SUM, 5),
        (DType.I64, Op.MAX, 0),
    ):
        check(rank, size, count, dtype, op)
    mine, total = data(rank, 50_001, DType.F32), expected(50_001, DType.F32, Op.SUM, size)
    same("scaled", slipstream.all_reduce(mine, prescale=2.0, postscale=0.25), total * np.float32(0.5))
    for state in states():
        assert state["used"], state
        assert state["sent"] > 1 << 18, state
        assert state["lost"] == 0, state


def rounds(rank: int, size: int) -> None:
    """Of sums that round, all ranks have the same bits. Several operations at once."""
    for dtype, tolerance in (("float64", 1e-13), ("float32", 2e-6), ("float16", 4e-3)):
        inputs = [np.random.default_rng(r).standard_normal(1_300_001).astype(dtype) for r in range(size)]
        works = [slipstream.all_reduce(inputs[rank][k:], async_op=True) for k in range(6)]
        works.append(slipstream.all_reduce(np.array([rank]), async_op=True))
        exact = np.sum([x.astype(np.float64) for x in inputs], axis=0)
        *found, small = [work.wait() for work in works]
        assert small[0] == sum(range(size))
        for k, got in enumerate(found):
            np.testing.assert_allclose(got.astype(np.float64), exact[k:], rtol=0, atol=tolerance * 32)
            same_on_all(f"{dtype} from {k} on", got)
    inputs = [
        quantized(np.random.default_rng(r).standard_normal((3001, 64)).astype(np.float32))
        for r in range(size)
    ]
    got = slipstream.all_reduce(inputs[rank])
    same_on_all("blocks", got)
    numbers = [numbers_of(x) for x in inputs]
    unit = np.sum([np.abs(x).max(axis=1) for x in numbers], axis=0) / 127
    assert (np.abs(numbers_of(got) - sum(numbers)) <= 0.505 * 2 * size * unit[:, None]).all()


def loss(rank: int, size: int) -> None:
    """Goes on until a reducer has been lost, and all are used again."""
    count, phase = 1_500_001, "used"
    mine, total = data(rank, count, DType.F32), expected(count, DType.F32, Op.SUM, size)
    for turn in range(1 << 30):
        works = [slipstream.all_reduce(mine, async_op=True), slipstream.all_reduce(mine[:99], async_op=True)]
        place = mine.copy()
        slipstream.all_reduce(place, out=place)
        same(f"turn {turn} in place", place, total)
        same(f"turn {turn}", works[0].wait(), total)
        same(f"small of turn {turn}", works[1].wait(), total[:99])
        found = states()
        if phase == "used" and all(state["sent"] for state in found):
            print("used", flush=True)
            phase = "lost"
        elif phase == "lost" and any(state["lost"] for state in found):
            print("lost", flush=True)
            phase = "back"
        elif phase == "back" and all(state["used"] for state in found):
            phase = "end"
        if slipstream.all_reduce(np.array([phase == "end"]), Op.MIN)[0]:
            break
    print("back", flush=True)


def mismatch(rank: int, size: int) -> None:
    mine = np.ones(300_000 + rank // (size - 1), np.float32)  # the last rank has one more
    try:
        slipstream.all_reduce(mine)
    except Mismatch as error:
        print("mismatch", error, flush=True)


def shrink(rank: int, size: int) -> None:
    """The last rank is killed in the middle of large operations; the others go on without it."""
    mine = data(rank, 1_500_001, DType.F32)
    try:
        for turn in range(1 << 30):
            slipstream.all_reduce(mine)
            if turn == 2:
                print("running", flush=True)
    except PeerLost as error:
        print("lost", error.rank, flush=True)
    group = slipstream.world().shrink()
    assert group.size == size - 1
    total = expected(1_500_001, DType.F32, Op.SUM, size - 1)
    same("after the loss", slipstream.all_reduce(mine), total)
    print("went on", flush=True)


def main() -> None:
    slipstream.init()
    assert states(), "no reducers"
    cases = {case.__name__: case for case in (values, rounds, loss, mismatch, shrink)}
    cases[sys.argv[1]](slipstream.rank(), slipstream.size())
    slipstream.shutdown()


main()
