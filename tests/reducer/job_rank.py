"""One rank of a job with reducers.

    job_rank.py values | wires | asynchronous | resets | limited RATE | loss [--staggered] | endless

Inputs are small whole numbers, so that every sum is exact in every dtype and the results must be equal to the bit.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import zlib
from functools import reduce as fold
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "comm"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from expected import data, numbers_of, quantized, reduce_arrays, same
from lanes_rank import reset_connection

import slipstream
from slipstream import _core
from slipstream.base.dtypes import DType, Op, itemsize
from slipstream.comm.membership import job

STAGGERED = "--staggered" in sys.argv  # rank 0 waits for each operation, the others start several
SPLIT = 32 << 10  # bytes from which reducers take a part


def states() -> list[dict[str, Any]]:
    return job.current().reducers.states()


def expected(count: int, dtype: DType, op: Op) -> np.ndarray[Any, Any]:
    return reduce_arrays([data(r, count, dtype, op) for r in range(slipstream.size())], dtype, op)


def counts(dtype: DType, op: Op) -> list[int]:
    least = SPLIT // itemsize(dtype)
    if (dtype, op) in {(DType.F32, Op.SUM), (DType.F16, Op.AVG), (DType.I64, Op.MAX), (DType.BF16, Op.SUM)}:
        return [least, least + 1, 3 * least + 7, (1 << 20) + 3]
    return [least + 3]


def same_on_all(what: str, got: np.ndarray[Any, Any]) -> None:
    sums = slipstream.all_gather(np.array([zlib.crc32(got.tobytes())], dtype=np.int64))
    assert len(set(sums.tolist())) == 1, f"{what}: ranks hold different bits: {sums}"


def values(rank: int) -> None:
    for dtype in DType:
        for op in Op:
            for count in counts(dtype, op) if _core.reduces(dtype, op) else []:
                what = f"{dtype.name} {op.name} x {count}"
                mine, sum_of_all = data(rank, count, dtype, op), expected(count, dtype, op)
                same(what, slipstream.all_reduce(mine, op), sum_of_all)
                same(f"the input of {what}", mine, data(rank, count, dtype, op))
                slipstream.all_reduce(mine, op, out=mine)
                same(f"in place {what}", mine, sum_of_all)
    for dtype, tolerance in (("float64", 1e-13), ("float32", 2e-6), ("float16", 4e-3)):  # numbers that round
        inputs = [
            np.random.default_rng(r).standard_normal(70_001).astype(dtype) for r in range(slipstream.size())
        ]
        got = slipstream.all_reduce(inputs[rank])
        exact = np.sum([x.astype(np.float64) for x in inputs], axis=0)
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=0, atol=tolerance * 16)
        same_on_all(dtype, got)
        again = slipstream.all_reduce(inputs[rank])  # perhaps split elsewhere, if a reducer stayed behind
        np.testing.assert_allclose(again.astype(np.float64), exact, rtol=0, atol=tolerance * 16)
        same_on_all(f"{dtype} again", again)
    for op, count in ((Op.SUM, 3001), (Op.AVG, 3001), (Op.SUM, 20), (Op.SUM, 40_003)):
        blocks(rank, op, count)
    mine, total = data(rank, 50_001, DType.F32), expected(50_001, DType.F32, Op.SUM)
    same("prescale", slipstream.all_reduce(mine, prescale=0.5), total * np.float32(0.5))
    same("postscale", slipstream.all_reduce(mine, postscale=0.25), total * np.float32(0.25))
    same("both", slipstream.all_reduce(mine, prescale=2.0, postscale=0.25), total * np.float32(0.5))
    for state in states():
        assert state["used"], state
        assert state["sent"] > 1 << 20, state
        assert state["lost"] == 0, state


def blocks(rank: int, op: Op, count: int) -> None:
    """Reducers add block-int8 in f32, in the order of the ranks, and quantise the sum once. Those come last in the
    array whose sum they make; the workers' own ring, which has the others, quantises at each step."""
    n = slipstream.size()
    inputs = [
        quantized(np.random.default_rng((r, count)).standard_normal((count, 64)).astype(np.float32))
        for r in range(n)
    ]
    numbers = [numbers_of(x) for x in inputs]
    total = fold(np.add, numbers) / np.float32(n if op is Op.AVG else 1)
    unit = np.sum([np.abs(x).max(axis=1) for x in numbers], axis=0) / (127 * n if op is Op.AVG else 127)
    before = sum(state["sent"] for state in states())
    got = slipstream.all_reduce(inputs[rank], op)
    ring = count - (sum(state["sent"] for state in states()) - before) // itemsize(DType.Q8)
    what = f"blocks {op.name} x {count}, {ring} of them by the ring"
    assert 0 <= ring < count or count * itemsize(DType.Q8) < SPLIT, what
    same(what, got[ring:], quantized(total)[ring:])
    same_on_all(what, got)
    scaled = slipstream.all_reduce(inputs[rank], op, prescale=2.0, postscale=0.25)
    for found in (numbers_of(got), 2 * numbers_of(scaled)):
        wrong = np.abs(found - total)
        assert (wrong <= 0.505 * n * unit[:, None]).all(), f"{what}: {wrong.max()}"


def wires(rank: int) -> None:
    """In fewer bits: the workers' ring and the reducers round alike on all ranks."""
    for wire, precision in (("bf16", 2**-8), ("f16", 2**-11), ("f8", 2**-4), ("int8", 1 / 254)):
        before = sum(state["sent"] for state in states())
        for count in (20, 8191, 8193, 40_003, (1 << 20) + 3):
            inputs = [
                np.random.default_rng(r).uniform(1, 2, count).astype(np.float32)
                for r in range(slipstream.size())
            ]
            total = np.sum([x.astype(np.float64) for x in inputs], axis=0)
            place = inputs[rank].copy()
            averages = slipstream.all_reduce(inputs[rank], "avg", wire=wire, async_op=True)
            slipstream.all_reduce(place, out=place, wire=wire)
            for got, wanted in ((place, total), (averages.wait(), total / slipstream.size())):
                same_on_all(f"{wire} x {count}", got)
                off = float(np.abs(got - wanted).max() / wanted.max())
                assert off < precision * (slipstream.size() / 2 + 2), (wire, count, off)
        sent = sum(state["sent"] for state in states()) - before
        assert 0 < sent < (9 << 20) * {"bf16": 0.51, "f16": 0.52}.get(wire, 0.27), (wire, sent)
    for state in states():
        assert state["lost"] == 0, state


def asynchronous(rank: int) -> None:
    for turn in range(5):
        cases = [(20_001 * (k + 1) + turn, (DType.F32, DType.BF16, DType.I32)[k % 3]) for k in range(12)]
        inputs = [data(rank, count, dtype) for count, dtype in cases]
        works = [
            slipstream.all_reduce(x, out=x if k % 2 else None, async_op=True) for k, x in enumerate(inputs)
        ]
        small = slipstream.all_reduce(np.array([rank]), async_op=True)  # one that no reducer sees
        for k in reversed(range(len(works))):
            same(f"{k} of turn {turn}", works[k].wait(), expected(*cases[k], Op.SUM))
        assert small.wait()[0] == sum(range(slipstream.size()))
    assert all(state["used"] and state["sent"] for state in states()), states()
    sent = {link["rank"]: link["sent"] for link in job.current().reducers.links()}
    for number, state in enumerate(states()):  # what has not left yet is only in the latter
        assert not state["used"] or sent[-1 - number] > state["sent"] / 2, (sent, states())


def resets(rank: int) -> None:
    """While connections to reducers are reset all the time: no value is wrong and no reducer lost."""
    ports = {state["incarnation"] >> 48 for state in states()}
    done, count, chance = threading.Event(), [0], random.Random(rank)

    def disturb() -> None:
        while not done.wait(0.02):
            rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            own = [int(row[1][-4:], 16) for row in rows if row[3] == "01" and int(row[2][-4:], 16) in ports]
            chance.shuffle(own)  # those of the other ranks are among them
            count[0] += any(reset_connection(f"127.0.0.1:{port}") for port in own)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for turn in range(1 << 30):
            mine, total = data(rank, 700_001 + turn, DType.F32), expected(700_001 + turn, DType.F32, Op.SUM)
            works = [slipstream.all_reduce(mine, async_op=True) for _ in range(2)]
            for work in works:
                same(f"turn {turn}", work.wait(), total)
            if slipstream.all_reduce(np.array(count), Op.MIN)[0] >= 30:
                break
    finally:
        done.set()
        thread.join()
    assert all(state["used"] and state["sent"] and not state["lost"] for state in states()), states()


def limited(rank: int) -> None:
    """Through the one reducer alone, which takes in no more than RATE bytes a second of this job."""
    rate = float(sys.argv[2])
    mine, total = data(rank, 1 << 20, DType.F32), expected(1 << 20, DType.F32, Op.SUM)
    client = job.current().reducers.client
    assert client is not None
    client.set_rates([float(slipstream.size())], 1e9)
    before, begin = states()[0]["sent"], time.monotonic()
    for turn in range(4):
        same(f"turn {turn}", slipstream.all_reduce(mine), total)
        small = mine[: 100 + turn]
        same(f"small, turn {turn}", slipstream.all_reduce(small), total[: small.size])
    seconds = time.monotonic() - begin
    state = states()[0]
    sent = (state["sent"] - before) * slipstream.size()
    assert sent > 16 << 20, sent
    assert sent < 1.5 * rate * seconds, (sent, seconds)
    assert state["used"], state
    assert state["lost"] == 0, state


def loss(rank: int) -> None:
    """Goes on until a reducer has been lost, and all are used again; rank 0 says how far it is."""
    count = 300_001
    mine, total = data(rank, count, DType.F32), expected(count, DType.F32, Op.SUM)
    phase = "used"
    for turn in range(1 << 30):
        if turn % 3:
            works = []
            for _ in range(3):
                works.append(slipstream.all_reduce(mine, async_op=True))
                if STAGGERED and rank == 0:
                    same(f"turn {turn}", works.pop().wait(), total)
            for work in works:
                same(f"turn {turn}", work.wait(), total)
        else:
            place = mine.copy()
            slipstream.all_reduce(place, out=place)
            same(f"turn {turn} in place", place, total)
            wired = slipstream.all_reduce(np.random.default_rng(rank).random(count, np.float32), wire="int8")
            same_on_all(f"turn {turn} in int8", wired)
        found = states()
        if phase == "used" and all(state["sent"] for state in found):
            print("used", flush=True)
            phase = "lost"
        elif phase == "lost" and any(state["lost"] for state in found):
            print("lost", flush=True)
            phase = "back"
        elif phase == "back" and all(state["used"] for state in found):
            phase = "end"
        ends = slipstream.all_reduce(np.array([phase == "end"]), Op.MIN)
        if ends[0]:
            break
    print("back", flush=True)


def endless(rank: int) -> None:
    mine = data(rank, 300_001, DType.F32)
    for turn in range(1 << 30):
        slipstream.all_reduce(mine)
        if turn == 5:
            print("running", flush=True)


def main() -> None:
    slipstream.init()
    assert states(), "no reducers"
    cases = {case.__name__: case for case in (values, wires, asynchronous, resets, limited, loss, endless)}
    cases[sys.argv[1]](slipstream.rank())
    slipstream.shutdown()


main()
