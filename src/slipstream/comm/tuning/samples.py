"""The times of operations on this rank: without the time in which they waited for the one before them."""

from __future__ import annotations

import math
import time

from slipstream import _core

__all__ = ["RunAhead", "Samples"]

_SETTLES = 0.15  # seconds in which new lanes find their rate
_LONG = 4  # times that long: an operation counts all the same


class Samples:
    """The first ``most`` operations with one setting, of which the first ``unsettled`` do not count.

    They do if they begin later than a moment from now, or are long.
    """

    def __init__(self, most: int, unsettled: int = 0) -> None:
        self._most = most
        self._begun: list[tuple[float, _core.Work | None, float]] = []
        self.unsettled, self._since = unsettled, time.monotonic()
        self.count = 0

    def add(self, begun: float, work: _core.Work | None) -> None:
        """An operation that was called at ``begun``, by time.monotonic(). ``work``: None if it is done."""
        self.count += 1
        if self.count <= self._most:
            self._begun.append((begun, work, 0.0 if work is not None else time.monotonic()))

    def times(self) -> list[float]:
        """Seconds of each, the oldest first; infinite if they are not known, or do not count."""
        found, before = [], -math.inf
        for begun, work, ended in self._begun:
            end = ended if work is None else work.finished()
            if end is None:
                found.append(math.inf)
                continue
            seconds = max(end - max(begun, before), 0.0)
            early = len(found) < self.unsettled and begun - self._since < _SETTLES
            found.append(math.inf if early and seconds < _LONG * _SETTLES else seconds)
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
