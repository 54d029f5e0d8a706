"""Events of a session as events of a Chrome trace ("Trace Event Format", the JSON array form). Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

__all__ = ["Rows", "dropped", "introduction", "line", "translate"]

_LINKS = 1000  # rows from here on are links, by peer; those below are operations
_ERRORS = ("", "PeerLost", "Mismatch", "Timeout", "Refused", "Aborted", "ValueError", "SlipstreamError")

Event = dict[str, Any]


class Rows:
    """Deals operations to rows so that none overlap in one, and names each row on its first use."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._ends: list[int] = []  # of the last operation of each row, nanoseconds
        self._links: set[int] = set()

    def of_operation(self, begin: int, end: int) -> tuple[int, list[Event]]:
        """The row of an operation (nanoseconds), and the events that name it if it is new."""
        for row, last in enumerate(self._ends):
            if last <= begin:
                self._ends[row] = end
                return row, []
        self._ends.append(end)
        row = len(self._ends) - 1
        return row, [_named(self.rank, row, "operations" if row == 0 else f"operations ({row + 1})")]

    def of_link(self, peer: int) -> tuple[int, list[Event]]:
        """The row of the link to ``peer``."""
        row = _LINKS + peer
        if peer in self._links:
            return row, []
        self._links.add(peer)
        return row, [_named(self.rank, row, f"link to rank {peer}")]


def _named(rank: int, row: int, name: str) -> Event:
    return {"name": "thread_name", "ph": "M", "pid": rank, "tid": row, "args": {"name": name}}


def introduction(rank: int, host: str) -> list[Event]:
    """What names the process of ``rank`` and puts it in its place among the others."""
    return [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank} ({host})"}},
        {"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}},
    ]


def translate(native: Iterable[dict[str, Any]], rows: Rows, offset: int) -> list[Event]:
    """Turns what `_core.Session.take_trace` gave into events.

    ``offset``: nanoseconds from the monotonic clock to the Unix epoch; times in a trace are microseconds.
    """
    found: list[Event] = []
    for one in native:
        if one["kind"] == "work":
            row, names = rows.of_operation(one["begin"], one["end"])
            event = _operation(one)
            event["ph"], event["dur"] = "X", (one["end"] - one["begin"]) / 1000
        else:
            row, names = rows.of_link(one["peer"])
            event = _lane(one)
            event["ph"], event["s"] = "i", "t"
        event |= {"ts": (one["begin"] + offset) / 1000, "pid": rows.rank, "tid": row}
        found += [*names, event]
    return found


def _operation(one: dict[str, Any]) -> Event:
    collective, _, algorithm = one["operation"].partition("/")
    collective = one["direction"] or collective
    name = one["name"].decode(errors="replace")
    args: dict[str, Any] = {"operation": collective, "dtype": one["dtype"], "bytes": one["bytes"]}
    args |= {"ranks": one["ranks"]}
    if algorithm:
        args["algorithm"] = algorithm
    if one["peer"] >= 0:
        args["peer"] = one["peer"]
    if one["error"]:
        args["error"] = _ERRORS[min(one["error"], len(_ERRORS) - 1)]
    return {"name": name or collective, "cat": "operation", "args": args}


def _lane(one: dict[str, Any]) -> Event:
    args = {"peer": one["peer"], "lane": one["lane"] or "control", "old_local": one["old_local"]}
    if one["new_local"]:
        args["new_local"] = one["new_local"]
    return {"name": one["kind"], "cat": "link", "args": args}


def dropped(rank: int, count: int, at: int) -> Event:
    """That ``count`` events are missing before the time ``at`` (Unix, nanoseconds): there were too many at once."""
    args = {"count": count}
    name = f"{count} events dropped"
    return {
        "name": name,
        "cat": "timeline",
        "ph": "i",
        "s": "p",
        "ts": at / 1000,
        "pid": rank,
        "tid": 0,
        "args": args,
    }


def line(event: Event) -> str:
    """The event as one line of JSON."""
    return json.dumps(event, separators=(",", ":"))
