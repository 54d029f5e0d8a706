"""How fast the links of a rank are, as the steps of a run have seen it.

A link knows only the rate of its last moments, which is no evidence: one that has sent little is slow by chance. So the
end of a step notes the rates of links that have carried something since. The second highest of the latest notes
counts: a host whose processors are busy sends slowly now and then, but no link carries more than its network does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["LinkRates"]

_PERIOD = 0.2  # seconds between two notes
_LEAST_BYTES = 1 << 20  # that a link has sent between two notes: less tells nothing of its rate
_KEPT = 16  # notes of a link, the latest


class LinkRates:
    """Notes the rates of links at most five times a second. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._noted = clock()
        self._sent: dict[int, int] = {}  # by rank: what had been sent at the last note
        self._rates: dict[int, deque[float]] = {}

    def is_due(self) -> bool:
        """Whether it is time for another note."""
        return self._clock() - self._noted >= _PERIOD

    def note(self, links: Iterable[dict[str, Any]]) -> None:
        """Takes the rates of ``links``: dicts with ``rank``, ``sent`` (bytes) and ``rate`` (bytes a second)."""
        self._noted = self._clock()
        for link in links:
            rank = link["rank"]
            if link["sent"] < self._sent.get(rank, 0):  # to a reducer that has come back
                self._sent[rank] = 0
            if link["rate"] > 0 and link["sent"] - self._sent.get(rank, 0) >= _LEAST_BYTES:
                self._sent[rank] = link["sent"]
                notes = self._rates.setdefault(rank, deque(maxlen=_KEPT))
                if not notes or notes[-1] != link["rate"]:  # else the link has not been busy since
                    notes.append(link["rate"])

    def of(self, rank: int) -> dict[str, Any]:
        """``best_rate``: the second highest of the notes of the link to ``rank``, 0 without two; ``rate_notes``: how
        many there are."""
        rates = sorted(self._rates.get(rank, ()))
        return {"best_rate": rates[-2] if len(rates) > 1 else 0.0, "rate_notes": len(rates)}
