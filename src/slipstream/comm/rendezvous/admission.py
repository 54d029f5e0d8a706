"""Callers that have not authenticated: few at once, and each for a short time.

All listeners of a job have these rules. native/base/admission.h states them for links (a test compares the two): who
only serves a store does not need the native module.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = [
    "GAVE_WAY",
    "GRACE",
    "LATE",
    "MOST",
    "MOST_NAMED",
    "MOST_REASONS",
    "REFUSALS_SECONDS",
    "SECONDS",
    "Admission",
    "RefusalLog",
]

# All ranks of a large host, or all lanes of 64 hosts; three listeners still leave room below 1024 open files.
MOST = 256
SECONDS = 5.0  # in which a caller has to authenticate
GRACE = 0.25  # seconds that a caller has before it may give way to another one

REFUSALS_SECONDS = 10.0
# Others are only counted, too: strangers choose their addresses.
MOST_NAMED = 256  # addresses with a reason, in that time
MOST_REASONS = 8  # of one address

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


class RefusalLog:
    """What is logged of the connections that are refused: a flood does not fill the log, nor hide somebody else.

    native/base/refusal_log.h has the same rule. The first refusal of an address for a reason is logged. The same again
    within ``REFUSALS_SECONDS`` is only counted, and one line says how many these were. Reasons that differ only in
    their numbers, such as ranks that callers claim to be, are one.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], int] = {}  # address, reason without its numbers: how many more
        self._first: list[str] = []  # to be logged
        self._others = 0
        self._ends = math.inf

    def add(self, who: str, why: str, now: float) -> None:
        """``who`` (address:port) is refused."""
        if self._ends == math.inf:
            self._ends = now + REFUSALS_SECONDS
        address = who.rpartition(":")[0]
        kind = address, re.sub(r"\d", "", why)
        if kind in self._kinds:
            self._kinds[kind] += 1
        elif len(self._kinds) < MOST_NAMED and self._reasons_of(address) < MOST_REASONS:
            self._kinds[kind] = 0
            self._first.append(f"refused {who}: {why}")
        else:
            self._others += 1

    def _reasons_of(self, address: str) -> int:
        return sum(one == address for one, _ in self._kinds)

    def take(self, now: float) -> list[str]:
        """The lines to be logged now. At `ends`, also how many more there were."""
        lines, self._first = self._first, []
        if now >= self._ends:
            more = self._others + sum(self._kinds.values())
            if more:
                lines.append(f"refused {more} more such connections within {REFUSALS_SECONDS:g} s")
            self._kinds, self._others, self._ends = {}, 0, math.inf
        return lines

    def ends(self) -> float:
        """When `take` says how many there were; inf if nobody was refused."""
        return self._ends
