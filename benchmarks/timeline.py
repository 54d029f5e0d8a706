"""What a timeline costs: steps with and without one, in turns, in one job. Rank 0 prints what a step takes
longer with one, as the median over pairs of neighbouring turns.

    slipstream run -np 2 -- python benchmarks/timeline.py

A step computes, and has eight all-reduces of 1 MiB under way meanwhile; the program records a bar and a mark. The first
steps of each turn do not count: a timeline that has just begun is written every 10 ms, soon after every 250 ms.
``--settle 0`` shows what that costs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import slipstream

OPERATIONS, NUMBERS, SIDE = 8, 1 << 18, 384


def seconds_of_a_step(gradients: list[np.ndarray], matrix: np.ndarray) -> float:
    """Of this rank, from one barrier to the next."""
    slipstream.barrier()
    begin = time.perf_counter()
    works = [
        slipstream.all_reduce(one, out=one, name=f"gradient {i}", async_op=True)
        for i, one in enumerate(gradients)
    ]
    with slipstream.timeline_span("compute"):
        for _ in range(4):
            matrix @ matrix
    slipstream.timeline_mark("computed")
    for work in works:
        work.wait()
    slipstream.barrier()
    return time.perf_counter() - begin


def main() -> None:
    """Runs the turns and prints what they took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=40, help="with and without, each")
    parser.add_argument("--steps", type=int, default=100, help="of a turn that count")
    parser.add_argument("--settle", type=int, default=80, help="steps of a turn before them")
    options = parser.parse_args()
    slipstream.init()
    gradients = [np.zeros(NUMBERS, np.float32) for _ in range(OPERATIONS)]
    matrix = np.ones((SIDE, SIDE), np.float32)
    medians: list[list[float]] = []  # of each pair of turns: without, with one
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(2 * options.turns + 2):
            recorded = turn % 2 == 1
            if recorded:
                slipstream.start_timeline(Path(folder) / "trace.json")
            times = [seconds_of_a_step(gradients, matrix) for _ in range(options.settle + options.steps)]
            if recorded:
                slipstream.stop_timeline()
            medians.append(
                [*([] if not recorded else medians.pop()), statistics.median(times[options.settle :])]
            )
    ratios = [with_one / without for without, with_one in medians[1:]]  # the first pair warms up
    low, middle, high = (100 * (ratio - 1) for ratio in statistics.quantiles(ratios, n=4))
    if slipstream.rank() == 0:
        print(
            f"a step without a timeline: {1e3 * statistics.median(one for one, _ in medians[1:]):.2f} ms; "
            f"with one: {middle:+.1f} % (median of {len(ratios)} pairs of turns; quartiles {low:+.1f}, {high:+.1f} %)"
        )
    slipstream.shutdown()


if __name__ == "__main__":
    main()
