"""Callers that have not authenticated: few at once, and each for a short time.

All listeners of a job have these rules. native/base/admission.h states them for links (a test compares the two): who
only serves a store does not need the native module.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["GAVE_WAY", "GRACE", "LATE", "MOST", "SECONDS", "Admission", "LogLimit"]

# All ranks of a large host, or all lanes of 64 hosts; three listeners still leave room below 1024 open files.
MOST = 256
SECONDS = 5.0  # in which a caller has to authenticate
GRACE = 0.25  # seconds that a caller has before it may give way to another one

# Why a caller is refused, for the log.
LATE = "did not authenticate in time"
GAVE_WAY = "dropped to make room for another caller: too many have not authenticated"

_T = TypeVar("_T")


class Admission(Generic[_T]):
    """The callers, oldest first. Times are those of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._since: OrderedDict[_T, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._since)

    def room_at(self) -> float:
        """From when on one more may come: -inf if there is room, else when the oldest one may give way."""
        return next(iter(self._since.values())) + GRACE if self._full() else -math.inf

    def add(self, caller: _T, now: float) -> _T | None:
        """One has come, at or after `room_at`. Returns the oldest one if that gives way."""
        displaced = self._since.popitem(last=False)[0] if self._full() else None
        self._since[caller] = now
        return displaced

    def discard(self, caller: _T) -> None:
        """It has authenticated, or is gone."""
        self._since.pop(caller, None)

    def _full(self) -> bool:
        return len(self._since) >= MOST


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
