"""The times of operations on this rank: without the time in which they waited for the one before them."""

from __future__ import annotations

import math
import time
from collections import deque

from slipstream import _core

__all__ = ["RunAhead", "Samples"]

_SETTLES = 0.15  # seconds in which new lanes find their rate
_LONG = 4  # times that long: an operation counts all the same
_MOST_UNSETTLED = 2  # operations, whatever the time


class Samples:
    """The last few operations of one setting. ``changed``: when its lanes were set, if they were."""

    def __init__(self, most: int, changed: float = -math.inf) -> None:
        self._begun: deque[tuple[float, bool, _core.Work | None, float]] = deque(maxlen=most)
        self._changed = changed
        self.count = 0

    def add(self, begun: float, work: _core.Work | None) -> None:
        """An operation that was called at ``begun``, by time.monotonic(). ``work``: None if it is done."""
        unsettled = self.count < _MOST_UNSETTLED and begun - self._changed < _SETTLES
        self.count += 1
        self._begun.append((begun, unsettled, work, 0.0 if work is not None else time.monotonic()))

    def times(self) -> list[float]:
        """Seconds of each, the oldest first; infinite if they are not known, or do not count."""
        found, before = [], -math.inf
        for begun, unsettled, work, ended in self._begun:
            end = ended if work is None else work.finished()
            if end is None:
                found.append(math.inf)
                continue
            seconds = max(end - max(begun, before), 0.0)
            found.append(math.inf if unsettled and seconds < _LONG * _SETTLES else seconds)
            before = end
        return found


class RunAhead:
    """How far a program runs ahead: operations begun while an earlier one is not done. ``most``: so far."""

    def __init__(self) -> None:
        self.most = 0
        self._running: list[_core.Work] = []  # from the oldest that is not done

    def add(self, work: _core.Work) -> None:
        """An operation that has begun."""
        self._running.append(work)

    def look(self) -> None:
        """Before the next one begins."""
        running = self._running
        del running[: next((i for i, work in enumerate(running) if not work.done()), len(running))]
        self.most = max(self.most, len(running))
