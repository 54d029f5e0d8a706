"""Who may come in: callers that have not proved themselves yet, few and for a short time.

The same rules hold at every listener of a job: the store's, and those of links (native/transport).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["GRACE", "MOST", "SECONDS", "Admission", "LogLimit"]

MOST = 128
SECONDS = 5.0  # in which a caller has to prove itself
GRACE = 0.25  # seconds a caller has for its proof before it gives way to another, however many come

_T = TypeVar("_T")


class Admission(Generic[_T]):
    """Callers in the order in which they came. Times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._since: OrderedDict[_T, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._since)

    def add(self, caller: _T, now: float) -> None:
        """One has come."""
        self._since[caller] = now

    def discard(self, caller: _T) -> None:
        """It has proved itself, or is gone."""
        self._since.pop(caller, None)

    @property
    def full(self) -> bool:
        """Nobody is let in before somebody leaves."""
        return len(self._since) >= MOST

    def oldest(self) -> tuple[_T, float]:
        """Who gives way next, and from when on. KeyError if nobody is there."""
        caller = next(iter(self._since))
        return caller, self._since[caller] + GRACE


class LogLimit:
    """At most 20 lines at once, and one a second on average: who floods a listener does not flood the log."""

    def __init__(self, now: float) -> None:
        self._credit, self._time = 20.0, now

    def allows(self, now: float) -> bool:
        """Whether one more line may be written."""
        self._credit = min(20.0, self._credit + (now - self._time))
        self._time = now
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True
