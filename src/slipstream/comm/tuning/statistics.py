"""What the times of a candidate say, which all ranks know alike. Pure.

A time is that of the slowest rank. What takes longer than the least of them is noise: other programs, or a rank that
came late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["MOST_SAMPLES", "seconds_of", "usable"]

MOST_SAMPLES = 8  # that are looked at
_REPEATS = 2
_QUICK = 0.01  # seconds: what is shorter is noisier, and cheap to repeat
_QUICK_REPEATS = 4
_CLEARLY_WORSE = 1.25  # times the best: given up after the first time


def usable(times: Sequence[float]) -> list[float]:
    """The times that every rank knows: the others are infinite, or negative where there is none."""
    return [seconds for seconds in times if 0 <= seconds < math.inf]


def seconds_of(times: Sequence[float], best: float | None, *, last: bool = False) -> float | None:
    """What a candidate takes; None if it has to be repeated. ``best``: of those before. ``last``: it may not be.

    Without any time it is infinite: the candidate is not chosen.
    """
    least = min(times, default=math.inf)
    repeats = _QUICK_REPEATS if least < _QUICK else _REPEATS
    clearly_worse = best is not None and _CLEARLY_WORSE * best < least < math.inf
    return least if last or clearly_worse or len(times) >= repeats else None
