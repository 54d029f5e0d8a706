"""A rank of `tuning.py`: the same all-reduces while they are tuned, and then with every fixed setting in turns.

    tuning_rank.py BYTES STEPS SECONDS

Rank 0 prints a line of JSON: the seconds of each of the first STEPS steps (of several all-reduces), what was chosen
and when; and, unless SECONDS is 0, what is measured for about SECONDS: the median of each fixed setting, and how often
its turn came, the choice among them. Ends with an error if a value is wrong.

What counts is a steady job. So a setting is measured after one call by the new plan, and as soon as new lanes have
settled. Where the choice leaves the number of lanes to the links, that takes long: they try 16 lanes anew as soon as
they are told to choose. So the choice has fewer turns then.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import slipstream
from slipstream.comm.tuning.candidates import Candidate, Way
from slipstream.plan.choose import estimate

_LANES = (1, 2, 4, 8, 16, 32)
_CHUNKS = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20)
_BUCKETS = 8  # all-reduces of a step
_BETWEEN = 6  # settings from one turn of the choice to the next
_VISITS = 2  # of the choice in a turn of all settings, if links choose their lanes
_SETTLES = 0.15  # seconds of operations until new lanes have their rate
_TRIAL = 3.0  # the same, until links have chosen their lanes
_VISIT = 0.05  # seconds of operations with a setting, in each of its turns; one operation at least
_MOST_OF_VISIT = 16
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


def enter(setting: Candidate, lanes: int | None, step: Callable[[], float]) -> None:
    """Begins to use a setting after one with ``lanes``, and waits until it is steady: as long on all ranks."""
    group, way = slipstream.world(), setting.way
    group.use("all_reduce", way.algorithm, way.chunk_bytes, reducers=way.reducers)
    if setting.lanes != lanes:
        group.session.set_lanes(setting.lanes or 0)
        left = _SETTLES if setting.lanes else _TRIAL
        while left > 0:
            left -= step()


def visit(step: Callable[[], float]) -> float:
    """The median of a few operations; the first by a new plan counts only if it is a long one."""
    first = step()
    return statistics.median([step() for _ in range(min(int(_VISIT / first), _MOST_OF_VISIT))] or [first])


def exhaustive(
    chosen: Candidate, every: Sequence[Candidate], seconds: float, step: Callable[[], float]
) -> dict[str, list[float]]:
    """The median of every setting, and its turns: the choice comes between them, hopeless ones come once."""
    found, lanes = {one: [] for one in every} | {chosen: []}, None
    end, turns, over = time.monotonic() + seconds, 0, False
    while not over or turns < _LEAST_TURNS:
        turns += 1
        best = min((min(times) for times in found.values() if times), default=None)
        hopeful = [one for one in every if best is None or min(found[one]) <= _HOPELESS * best]
        between = _BETWEEN if chosen.lanes else -(-len(hopeful) // _VISITS)
        for number, one in enumerate(hopeful):
            for setting in (chosen, one) if number % between == 0 else (one,):
                enter(setting, lanes, step)
                lanes = setting.lanes
                found[setting].append(visit(step))
        over = bool(slipstream.all_reduce(np.array([time.monotonic() > end]), slipstream.MAX)[0])
    return {str(one): [round(statistics.median(times), 6), len(times)] for one, times in found.items()}


def main() -> None:
    """Measures as the command line says."""
    nbytes, steps, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    slipstream.init()
    n = slipstream.size()
    data = np.empty(nbytes // 4, dtype=np.float32)
    taken, settled = [], None

    def step() -> float:
        return seconds_of_step(data, n * (n + 1) / 2)

    for i in range(steps):
        taken.append(round(sum(step() for _ in range(_BUCKETS)), 6))
        tuner = slipstream.world().compiled("all_reduce", nbytes).tuned_by
        if settled is None and tuner is not None and tuner.settled:
            settled = i + 1
    found: dict[str, Any] = {"steps": taken}
    if tuner is not None:
        found |= {"settled": settled, "chosen": str(tuner.candidate)}
    if seconds:
        if tuner is None:
            raise SystemExit("nothing is tuned: SLIPSTREAM_AUTOTUNE=on, and more than one host")
        found["fixed"] = exhaustive(tuner.candidate, settings(nbytes), seconds, step)
    if slipstream.rank() == 0:
        print(json.dumps(found), flush=True)
    slipstream.shutdown()


if __name__ == "__main__":
    main()
