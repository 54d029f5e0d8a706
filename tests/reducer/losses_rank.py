"""One rank of a job that goes on whatever becomes of its reducers. losses_rank.py FOLDER

A step is two large all-reduces and two small ones at once, all checked. It goes on until FOLDER/stop exists. Each rank
writes to FOLDER/rank<R> lines of words:

    reducers LOST USED      whenever that changes: how often any was lost, and a digit each, 1: it is used
    slow BEGUN SECONDS      a step that took longer than others
    turn STEPS WHEN         every five steps
    end STEPS LONGEST       at the end, with the seconds of the longest step

BEGUN and WHEN are by the clock of `time.monotonic`.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "comm"))
from expected import data, reduce_arrays, same

import slipstream
from slipstream.base.dtypes import DType, Op
from slipstream.comm.membership import job

COUNTS = (250_001, 700_003, 1000)
HANGS = 15.0  # seconds after which a step's end is not expected any more
SLOW = 0.25  # seconds; a step takes about 0.1


def report() -> None:
    """What a step that does not end waits for."""
    print(f"rank {slipstream.rank()}:", job.current().session.report(), flush=True)
    print(job.current().reducers.states(), flush=True)


def main() -> None:
    folder = Path(sys.argv[1])
    slipstream.init()
    rank, size = slipstream.rank(), slipstream.size()
    inputs = [data(rank, count, DType.F32) for count in COUNTS]
    sums = [reduce_arrays([data(r, c, DType.F32) for r in range(size)], DType.F32, Op.SUM) for c in COUNTS]
    stop, known, longest, turn = folder / "stop", "", 0.0, 0
    with (folder / f"rank{rank}").open("w", buffering=1) as out:
        while True:
            add = np.float32(turn % 5)
            given = [array + add for array in inputs]
            begin = time.monotonic()
            watch = threading.Timer(HANGS, report)
            watch.start()
            works = [slipstream.all_reduce(x, out=x, async_op=True) for x in given]
            works.append(slipstream.all_reduce(np.array([stop.exists()]), Op.MAX, async_op=True))
            *got, ends = [work.wait() for work in works]
            seconds = time.monotonic() - begin
            watch.cancel()
            for number, (one, total) in enumerate(zip(got, sums, strict=True)):
                same(f"{number} of turn {turn}", one, total + add * np.float32(size))
            states = job.current().reducers.states()
            lost = sum(state["lost"] for state in states)
            now = f"{lost} " + "".join(str(int(state["used"])) for state in states)
            if now != known:
                out.write(f"reducers {now}\n")
                known = now
            if seconds > SLOW:
                out.write(f"slow {begin} {seconds}\n")
            longest = max(longest, seconds)
            turn += 1
            if turn % 5 == 0:
                out.write(f"turn {turn} {time.monotonic()}\n")
            if ends[0]:
                break
        out.write(f"end {turn} {longest}\n")
    slipstream.shutdown()


main()
