"""One rank of a job whose small all-reduces go through reducers. small_rank.py CASE [MODE]

Whether they do is a matter of measured costs: here reducers count as cheaper, always. Inputs are small whole numbers,
so that every sum is exact in every dtype and the results must be equal to the bit.

loss: small ones alone until a reducer has been lost and is used again. MODE: one (at a time), many, or staggered (a
rank waits for each, the others begin ten).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "comm"))
from expected import data, reduce_arrays, same

import slipstream
from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.comm.membership import job
from slipstream.plan.choose import SmallCosts

COUNTS = (1, 2, 7, 1023, 1024, 1025, 4097, 8191)
SMALL = 32 << 10  # bytes from which an all-reduce is a large one


def states() -> list[dict[str, Any]]:
    return job.current().reducers.states()


def sent() -> list[int]:
    return [state["sent"] for state in states()]


def expected(count: int, dtype: DType, op: Op = Op.SUM) -> np.ndarray[Any, Any]:
    return reduce_arrays([data(r, count, dtype, op) for r in range(slipstream.size())], dtype, op)


def nothing_lost() -> None:
    for state in states():
        assert state["used"], state
        assert state["lost"] == 0, state


def values(rank: int) -> None:
    for dtype in DType:
        for op in Op:
            for count in COUNTS if _core.reduces(dtype, op) else ():
                what = f"{dtype.name} {op.name} x {count}"
                mine, total = data(rank, count, dtype, op), expected(count, dtype, op)
                before = sum(sent())
                same(what, slipstream.all_reduce(mine, op), total)
                same(f"the input of {what}", mine, data(rank, count, dtype, op))
                slipstream.all_reduce(mine, op, out=mine)
                same(f"in place {what}", mine, total)
                if (
                    mine.nbytes < SMALL
                ):  # one of the two may have been treated as a large one, for its verdict
                    assert sum(sent()) - before >= mine.nbytes, what
    nothing_lost()


def empty(rank: int) -> None:
    for dtype in DType:
        nothing = data(rank, 0, dtype)
        same("nothing", slipstream.all_reduce(nothing), nothing)
    same("something", slipstream.all_reduce(data(rank, 9, DType.F32)), expected(9, DType.F32))
    nothing_lost()


def scaled(rank: int) -> None:
    """Scaling, and averages that do not come out even."""
    n = slipstream.size()
    for count in (1, 7, 1025, 4097):
        mine, total = data(rank, count, DType.F32), expected(count, DType.F32)
        half, quarter = np.float32(0.5), np.float32(0.25)
        same("prescale", slipstream.all_reduce(mine, prescale=0.5), total * half)
        same("postscale", slipstream.all_reduce(mine, postscale=0.25), total * quarter)
        same("both", slipstream.all_reduce(mine, prescale=2.0, postscale=0.25), total * half)
        average = slipstream.all_reduce(mine, Op.AVG, postscale=2.0)
        np.testing.assert_allclose(average, total / np.float32(n) * 2, rtol=1e-6)
        everyone = slipstream.all_gather(average.reshape(1, -1))
        assert all(row.tobytes() == average.tobytes() for row in everyone)
        place = mine.copy()
        slipstream.all_reduce(place, prescale=4.0, postscale=0.5, out=place)
        same("in place", place, total * np.float32(2))
    nothing_lost()


def asynchronous(rank: int) -> None:
    """A hundred small ones between large ones, waited for in another order on every rank."""
    kinds = (DType.F32, DType.BF16, DType.I32, DType.F64)
    for turn in range(3):
        cases = [
            (300_001 + k if k % 25 == 10 else 1 + (k * 37 + turn) % 3000, kinds[k % 4]) for k in range(104)
        ]
        inputs = [data(rank, count, dtype) for count, dtype in cases]
        before = sum(sent())
        works = [
            slipstream.all_reduce(x, out=x if k % 2 else None, async_op=True) for k, x in enumerate(inputs)
        ]
        order = np.random.default_rng(rank + 100 * turn).permutation(len(works))
        for k in order:
            same(f"{k} of turn {turn}", works[k].wait(), expected(*cases[k]))
        assert sum(sent()) > before
    nothing_lost()


def others(rank: int) -> None:
    """Broadcasts, all-gathers and reduce-scatters as all-reduces, of parts that differ in size too."""
    n = slipstream.size()
    costs = dict.fromkeys(("broadcast", "all_gather", "reduce_scatter"), (1.0, 1.0))
    job.current().reducers.small_costs = SmallCosts((1.0, 1.0), (0.0, 0.0), costs)
    for dtype, op in ((DType.F32, Op.SUM), (DType.BF16, Op.MAX), (DType.I64, Op.SUM), (DType.F64, Op.AVG)):
        for count in (1, 5, 300):
            sizes = [count + 2 * r for r in range(n)]
            ends = np.cumsum(sizes)
            begin, end = ends[rank] - sizes[rank], ends[rank]
            total = expected(int(ends[-1]), dtype, op)
            mine, before = data(rank, int(ends[-1]), dtype, op), sum(sent())
            what = f"{dtype.name} {op.name} x {count}"
            same(f"scatter {what}", slipstream.reduce_scatter(mine, op, counts=sizes), total[begin:end])
            work = slipstream.reduce_scatter(mine, op, out=mine[begin:end], counts=sizes, async_op=True)
            root = count % n
            copied = slipstream.broadcast(data(rank, count, dtype), root)
            gathered = slipstream.all_gather(data(rank, sizes[rank], dtype))
            same(f"broadcast {what}", copied, data(root, count, dtype))
            same(f"gather {what}", gathered, np.concatenate([data(r, sizes[r], dtype) for r in range(n)]))
            same(f"in place {what}", work.wait(), total[begin:end])
            same(f"around {what}", mine[:begin], data(rank, int(ends[-1]), dtype, op)[:begin])
            # all but one, which may have been treated as a large one
            assert sum(sent()) - before >= total.nbytes + copied.nbytes + gathered.nbytes, what
    half = slipstream.reduce_scatter(np.ones(2 * n, np.float32), prescale=0.5, postscale=4.0)
    same("scaled", half, np.full(2, 2 * n, np.float32))
    nothing_lost()


def flight(rank: int) -> None:
    """Operations of several kinds that are in flight together on the same memory act one after another."""
    n = slipstream.size()
    costs = dict.fromkeys(("broadcast", "all_gather", "reduce_scatter"), (1.0, 1.0))
    job.current().reducers.small_costs = SmallCosts((1.0, 1.0), (0.0, 0.0), costs)
    for turn in range(20):
        data, blocks = np.ones(300), np.ones(300 * n)
        mine, block = blocks[300 * rank : 300 * rank + 300], np.empty(300)
        works = [
            slipstream.all_reduce(data, out=data, async_op=True),
            slipstream.broadcast(data, turn % n, out=data, async_op=True),
            slipstream.all_reduce(data, out=mine, async_op=True),
            slipstream.all_gather(mine, out=blocks, async_op=True),
            slipstream.reduce_scatter(blocks, out=block, async_op=True),
            slipstream.all_reduce(block, out=block, async_op=True),
            slipstream.all_gather(block, out=blocks, async_op=True),
        ]
        for work in works:
            work.wait()
        same("data", data, np.full(300, float(n)))
        same("blocks", blocks, np.full(300 * n, float(n**4)))
    nothing_lost()


def turn_of_loss(rank: int, turn: int, mode: str) -> None:
    counts = [1 + (turn * 41 + k * 397) % 4000 for k in range(10)]
    inputs = [data(rank, count, DType.F32) + np.float32(turn % 4) for count in counts]
    sums = [expected(count, DType.F32) + np.float32(turn % 4 * slipstream.size()) for count in counts]
    waits_each = mode == "one" or (mode == "staggered" and rank == turn % slipstream.size())
    works = []
    for k, (mine, total) in enumerate(zip(inputs, sums, strict=True)):
        work = slipstream.all_reduce(mine, out=mine if k % 2 else None, async_op=True)
        if waits_each:
            same(f"{k} of turn {turn}", work.wait(), total)
        else:
            works.append((work, total))
    for k, (work, total) in enumerate(works):
        same(f"{k} of turn {turn}", work.wait(), total)


def loss(rank: int) -> None:
    """Goes on until a reducer has been lost and small ones go through all again; says how far it is."""
    mode, phase, before = sys.argv[2], "begin", sent()
    for turn in range(1 << 30):
        turn_of_loss(rank, turn, mode)
        risen = all(now > then for now, then in zip(sent(), before, strict=True))
        if phase == "begin" and risen:
            print("used", flush=True)
            phase = "used"
        elif phase == "used" and any(state["lost"] for state in states()):
            print("lost", flush=True)
            phase = "lost"
        elif phase == "lost" and all(state["used"] for state in states()):
            phase, before = "back", sent()
        elif phase == "back" and risen:
            phase = "end"
        if slipstream.all_reduce(np.array([phase == "end"]), Op.MIN)[0]:
            break
    print("back", flush=True)


def unreached(rank: int) -> None:
    """Nothing is lost by reducers that only some ranks reach; a digit for each says which are used."""
    wanted, costs = sys.argv[2], job.current().reducers.small_costs
    assert (costs is not None) == ("1" in wanted)
    for count in (1, 1000, 300_001):
        for _ in range(10):
            same(str(count), slipstream.all_reduce(data(rank, count, DType.F32)), expected(count, DType.F32))
    for state, used in zip(states(), wanted, strict=True):
        assert state["used"] == (used == "1"), state
        assert state["used"] or state["lost"] == state["redone"] == 0, state


def main() -> None:
    slipstream.init()
    assert states(), "no reducers"
    if sys.argv[1] != "unreached":  # which looks at the real ones
        job.current().reducers.small_costs = SmallCosts((1.0, 1.0), (0.0, 0.0))
    cases = {
        case.__name__: case for case in (values, empty, scaled, asynchronous, others, flight, loss, unreached)
    }
    cases[sys.argv[1]](slipstream.rank())
    slipstream.shutdown()


main()
