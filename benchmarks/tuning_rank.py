"""A rank of `tuning.py`: the same all-reduces while they are tuned, and then with every fixed setting in turns.

    tuning_rank.py BYTES STEPS SECONDS

Rank 0 prints a line of JSON: the seconds of each of the first STEPS steps (of several all-reduces), what was chosen
and when, and for about SECONDS the median of each fixed setting, the choice among them. Ends with an error if a value
is wrong.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

import slipstream
from slipstream.comm.tuning.candidates import Candidate, Way
from slipstream.plan.choose import estimate

_LANES = (1, 2, 4, 8, 16, 32)
_CHUNKS = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20)
_BUCKETS = 8  # all-reduces of a step
_BETWEEN = 6  # settings from one turn of the choice to the next
_LEAST_TURNS = 4
_HOPELESS = 1.2  # times the best: measured once


def seconds_of_step(data: np.ndarray, wanted: float) -> float:
    """A checked all-reduce, on the slowest rank."""
    data[...] = slipstream.rank() + 1
    begin = time.perf_counter()
    slipstream.all_reduce(data, out=data)
    seconds = time.perf_counter() - begin
    if not (data == wanted).all():
        raise SystemExit(f"rank {slipstream.rank()}: wrong sum")
    return float(slipstream.all_reduce(np.array([seconds]), slipstream.MAX)[0])


def settings(nbytes: int) -> list[Candidate]:
    """All fixed settings: lanes times ways times chunks."""
    group = slipstream.world()
    algorithms = sorted(estimate("all_reduce", nbytes, group.topology))
    ways = [Way(name, chunk) for name in algorithms for chunk in _CHUNKS]
    if group.job.reducers.for_choices(group):
        ways += [Way("ring", chunk, reducers=True) for chunk in _CHUNKS]
    return [Candidate(way, lanes) for lanes, way in itertools.product(_LANES, ways)]


def exhaustive(
    chosen: Candidate, every: Sequence[Candidate], seconds: float, step: Callable[[], float]
) -> dict[str, list[float]]:
    """The median of every setting, and its turns: the choice comes between them, hopeless ones come once."""
    group, found, lanes = slipstream.world(), {one: [] for one in every} | {chosen: []}, None
    end, turns, over = time.monotonic() + seconds, 0, False
    while not over or turns < _LEAST_TURNS:
        turns += 1
        best = min((min(times) for times in found.values() if times), default=None)
        hopeful = [one for one in every if best is None or min(found[one]) <= _HOPELESS * best]
        for number, one in enumerate(hopeful):
            for setting in (chosen, one) if number % _BETWEEN == 0 else (one,):
                way = setting.way
                group.use("all_reduce", way.algorithm, way.chunk_bytes, reducers=way.reducers)
                if setting.lanes != lanes:
                    lanes = setting.lanes
                    group.session.set_lanes(lanes or 0)
                    step()  # its connections are new
                found[setting].append(step())
        over = bool(slipstream.all_reduce(np.array([time.monotonic() > end]), slipstream.MAX)[0])
    return {str(one): [round(statistics.median(times), 6), len(times)] for one, times in found.items()}


def main() -> None:
    """Measures as the command line says."""
    nbytes, steps, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    slipstream.init()
    n = slipstream.size()
    data = np.empty(nbytes // 4, dtype=np.float32)
    tuned, settled = [], None

    def step() -> float:
        return seconds_of_step(data, n * (n + 1) / 2)

    for i in range(steps):
        tuned.append(round(sum(step() for _ in range(_BUCKETS)), 6))
        tuner = slipstream.world().compiled("all_reduce", nbytes).tuned_by
        if settled is None and tuner is not None and tuner.settled:
            settled = i + 1
    if tuner is None:
        raise SystemExit("nothing is tuned: SLIPSTREAM_AUTOTUNE=on, and more than one host")
    chosen = tuner.candidate
    fixed = exhaustive(chosen, settings(nbytes), seconds, step)
    if slipstream.rank() == 0:
        print(
            json.dumps({"tuned": tuned, "settled": settled, "chosen": str(chosen), "fixed": fixed}),
            flush=True,
        )
    slipstream.shutdown()


if __name__ == "__main__":
    main()
