"""What the times of a candidate say, which all ranks know alike. Pure.

A time is that of the slowest rank. What takes longer than the shortest of them is mostly noise: other programs, or a
rank that came late. Long operations are little disturbed, and dear to repeat: the shortest of two counts. The times of
quick ones, of less than 10 ms, vary more, and cost little: of 16, the one that a quarter is shorter than counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["MOST_SAMPLES", "is_quick", "next_look", "seconds_of", "typical", "unsettled", "usable"]

_QUICK = 0.01  # seconds
_REPEATS = 2
_QUICK_FEW, _QUICK_REPEATS = 4, 16  # times that are looked at: first so few, to give up what is clearly worse
_CLEARLY_WORSE, _QUICK_CLEARLY_WORSE = 1.25, 1.15  # times the best
_UNSETTLED = (0, 2)  # calls that do not count after a change of: the way alone, the lanes
_QUICK_UNSETTLED = (1, 4)
MOST_SAMPLES = _QUICK_UNSETTLED[1] + _QUICK_REPEATS


def is_quick(seconds: float | None) -> bool:
    """Whether operations of so many seconds are cheap to repeat; None: nobody knows yet."""
    return seconds is not None and seconds < _QUICK


def unsettled(best: float | None, *, lanes: bool) -> int:
    """How many calls after a change do not count. ``best``: the time of the best setting; ``lanes``: they change."""
    return (_QUICK_UNSETTLED if is_quick(best) else _UNSETTLED)[lanes]


def next_look(calls: int, best: float | None, unsettled: int) -> int:
    """After how many calls with a setting the ranks tell each other their times, if it is not at ``calls``.

    Quick operations are slowed by each look, so there are few.
    """
    quick = (unsettled + count for count in (_QUICK_FEW, _QUICK_REPEATS)) if is_quick(best) else ()
    return next((count for count in quick if count > calls), calls + 1)


def usable(times: Sequence[float]) -> list[float]:
    """The times that every rank knows: the others are infinite, or negative where there is none."""
    return [seconds for seconds in times if 0 <= seconds < math.inf]


def typical(times: Sequence[float]) -> float:
    """What operations take that took ``times``, of which there is one at least."""
    return sorted(times)[len(times) // 4 if is_quick(min(times)) else 0]


def seconds_of(times: Sequence[float], best: float | None, *, last: bool = False) -> float | None:
    """What a candidate takes; None if it has to be repeated. ``best``: of those before. ``last``: it may not be.

    Without any time it is infinite: the candidate is not chosen.
    """
    known = math.inf if best is None else best
    if is_quick(min([known, *times])):
        few, enough, worse = _QUICK_FEW, _QUICK_REPEATS, _QUICK_CLEARLY_WORSE
    else:
        few, enough, worse = 1, _REPEATS, _CLEARLY_WORSE
    seconds = typical(times) if times else math.inf
    clearly_worse = len(times) >= few and worse * known < seconds
    return seconds if last or clearly_worse or len(times) >= enough else None
