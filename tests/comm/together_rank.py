"""One of three ranks that make calls of several operations with wrong arguments: on all ranks, or on rank 1 alone.

together_rank.py CASE: prints what this rank's call raised, and whether the session goes on
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

import slipstream


def alone(right: tuple[int, ...], wrong: tuple[int, ...]) -> tuple[int, ...]:
    return wrong if slipstream.rank() == 1 else right


def scattered() -> None:
    x = np.ones((6, 2) if slipstream.rank() == 1 else (1, 2))
    slipstream.scatter(x, 1, out=np.empty((1, 2)))


CASES: dict[str, Callable[[], object]] = {
    "widths": lambda: slipstream.all_gather(np.ones(alone((2, 3), (2, 4)))),
    "before": lambda: slipstream.all_to_all(np.ones(4)),
    "all_gather": lambda: slipstream.all_gather(np.ones((2, 3)), out=np.empty(alone((6, 3), (5, 3)))),
    "gather": lambda: slipstream.gather(np.ones((2, 3)), 1, out=np.empty(alone((6, 3), (5, 3)))),
    "all_to_all": lambda: slipstream.all_to_all(np.ones((3, 2)), out=np.empty(alone((3, 2), (4, 2)))),
    "scatter": scattered,
}


def main() -> None:
    slipstream.init()
    slipstream.barrier()
    try:
        CASES[sys.argv[1]]()
    except (ValueError, slipstream.Aborted) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    try:
        slipstream.barrier()
        print("goes on", flush=True)
    except slipstream.Aborted as error:
        print(f"has ended: {error}", flush=True)
    slipstream.shutdown()


main()
