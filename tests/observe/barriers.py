"""How far the ranks of a timeline are apart where they cannot be: at the end of a barrier."""

from __future__ import annotations

import statistics
from typing import Any

BARRIERS = 40  # of one_timeline_rank.py


def spread(events: list[dict[str, Any]], n: int) -> float:
    """Microseconds between the first and the last end of a barrier's bars; the median of many."""
    ends: dict[int, list[float]] = {}
    for event in events:
        if event["name"] == "barrier":
            ends.setdefault(event["pid"], []).append(event["ts"] + event["dur"])
    assert [len(one) for one in ends.values()] == [BARRIERS] * n
    each = zip(*(sorted(one) for one in ends.values()), strict=True)
    return statistics.median(max(one) - min(one) for one in each)
