"""What a timeline says in numbers. Pure functions of its events; times are seconds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from slipstream.base.own_names import is_own
from slipstream.observe.trace_reading import Event

__all__ = ["CLASSES", "summarised"]

# Operations are of a size class if they have that many bytes at most.
CLASSES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
_MOST_LINKS = 10
_OWN = "slipstream itself"  # the kind of operations that the library calls for itself


def summarised(events: Sequence[Event]) -> dict[str, Any]:
    """Operations by kind and size class, links by bytes, steps, negotiation, and what went wrong; JSON."""
    timed = [event for event in events if event["ph"] in ("X", "i")]
    begins = [float(event["ts"]) for event in timed]
    ends = [_end(event) for event in timed]
    works = [event for event in timed if event.get("cat") == "operation"]
    return {
        "ranks": len({event["pid"] for event in timed}),
        "seconds": (max(ends) - min(begins)) / 1e6 if timed else 0.0,
        "operations": _operations(works),
        "links": _links(timed),
        "steps": _steps(timed, works),
        "negotiation": _durations(
            event for event in timed if event.get("cat") == "negotiation" and "dur" in event
        ),
        "errors": sum("error" in event["args"] for event in works),
        "lanes_lost": sum(event["name"] == "lane lost" for event in timed if event.get("cat") == "link"),
        "dropped": sum(event["args"]["count"] for event in timed if event.get("cat") == "timeline"),
    }


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event.get("dur", 0))


def _durations(events: Iterable[Event]) -> dict[str, Any]:
    found = [event["dur"] / 1e6 for event in events]
    return {"count": len(found), "median": statistics.median(found) if found else 0.0, "total": sum(found)}


def _operations(works: Sequence[Event]) -> list[dict[str, Any]]:
    """A row for each kind and size class that there is."""
    groups: dict[tuple[str, int], list[Event]] = {}
    for event in works:
        nbytes = int(event["args"].get("bytes", 0))
        most = next((one for one in CLASSES if nbytes <= one), 0)
        groups.setdefault((_kind(event), most), []).append(event)
    rows = []
    for (kind, most), found in sorted(groups.items(), key=lambda one: (one[0][0], one[0][1] or 1 << 62)):
        seconds = sorted(event["dur"] / 1e6 for event in found)
        nbytes = sum(int(event["args"].get("bytes", 0)) for event in found)
        rows.append(
            {
                "operation": kind,
                "most_bytes": most or None,  # None: more than the largest class
                "count": len(found),
                "bytes": nbytes,
                "median": statistics.median(seconds),
                "p95": seconds[min(len(seconds) - 1, round(0.95 * len(seconds)))],
                "total": sum(seconds),
                "rate": nbytes / sum(seconds) if sum(seconds) else 0.0,
            }
        )
    return rows


def _kind(event: Event) -> str:
    return _OWN if is_own(event["name"]) else str(event["args"].get("operation", event["name"]))


def _links(timed: Sequence[Event]) -> list[dict[str, Any]]:
    """What each rank has sent to its peers, most first."""
    found = [
        {"rank": event["pid"], **event["args"]}
        for event in timed
        if event.get("cat") == "link" and event["name"] == "total"
    ]
    return sorted(found, key=lambda one: -one.get("sent", 0))[:_MOST_LINKS]


def _steps(timed: Sequence[Event], works: Sequence[Event]) -> list[dict[str, Any]]:
    """Of each rank with steps: how long they take, and how much of the communication the program waits for."""
    rows = []
    for rank in sorted({event["pid"] for event in timed if event.get("cat") == "steps"}):
        steps = [event for event in timed if event.get("cat") == "steps" and event["pid"] == rank]
        spans = [(float(event["ts"]), _end(event)) for event in steps]
        waits = [e for e in timed if e.get("cat") == "gradients" and e["name"] == "wait" and e["pid"] == rank]
        busy = _union((float(event["ts"]), _end(event)) for event in works if event["pid"] == rank)
        seconds = sum(end - begin for begin, end in spans) / 1e6
        exposed = _overlap(_union((float(event["ts"]), _end(event)) for event in waits), _union(spans))
        rows.append(
            {
                "rank": rank,
                "steps": len(steps),
                "median": statistics.median(event["dur"] for event in steps) / 1e6,
                "seconds": seconds,
                "communication": _overlap(busy, _union(spans)) / 1e6,
                "exposed": exposed / 1e6,
            }
        )
    return rows


Spans = list[tuple[float, float]]


def _union(spans: Iterable[tuple[float, float]]) -> Spans:
    """The same times, without overlap, in order."""
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _overlap(one: Spans, other: Spans) -> float:
    """How long both last; neither overlaps itself."""
    total, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        total += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return total
