"""Events of a session as events of a Chrome trace ("Trace Event Format", the JSON array form). Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from slipstream.base.recording import Recorded

__all__ = ["Rows", "dropped", "introduction", "line", "totals", "translate", "translate_recorded"]

# Rows from these numbers on are links, by peer, and tracks; those below are operations.
_LINKS, _TRACKS = 1000, 1 << 20
# The order in which viewers show them: what the program does above what that makes.
_PLACES = {"steps": 90, "gradients": 100, "negotiation": 110, "wire": 400, "reducer": 410, "plan": 420}
_THREAD_PLACE, _OTHER_PLACE, _OPERATION_PLACE, _LINK_PLACE = 0, 120, 300, 500
_ERRORS = ("", "PeerLost", "Mismatch", "Timeout", "Refused", "Aborted", "ValueError", "SlipstreamError")

Event = dict[str, Any]


class Rows:
    """Deals what overlaps to rows so that no two overlap in one, and names each row on its first use."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._operations: list[int] = []  # the end of the last one of each row, nanoseconds
        self._links: set[int] = set()
        self._tracks: dict[
            str, list[tuple[int, int]]
        ] = {}  # of each row: its number, the end of the last bar
        self._next = _TRACKS

    def of_operation(self, begin: int, end: int) -> tuple[int, list[Event]]:
        """The row of an operation (nanoseconds), and the events that name it if it is new."""
        for row, last in enumerate(self._operations):
            if last <= begin:
                self._operations[row] = end
                return row, []
        self._operations.append(end)
        row = len(self._operations) - 1
        return row, self._named(row, _numbered("operations", row), _OPERATION_PLACE)

    def of_link(self, peer: int) -> tuple[int, list[Event]]:
        """The row of the link to ``peer``."""
        row = _LINKS + peer
        if peer in self._links:
            return row, []
        self._links.add(peer)
        return row, self._named(row, f"link to rank {peer}", _LINK_PLACE)

    def of_track(self, track: str, begin: int, end: int, *, nests: bool) -> tuple[int, list[Event]]:
        """The row of a bar or a mark of ``track``; where bars nest, they share one."""
        rows = self._tracks.setdefault(track, [])
        for at, (row, last) in enumerate(rows):
            if nests or last <= begin:
                rows[at] = row, end
                return row, []
        row, self._next = self._next, self._next + 1
        rows.append((row, end))
        place = _THREAD_PLACE if nests else _PLACES.get(track.partition(" ")[0], _OTHER_PLACE)
        return row, self._named(row, _numbered(track, len(rows) - 1), place)

    def _named(self, row: int, name: str, place: int) -> list[Event]:
        about = {"ph": "M", "pid": self.rank, "tid": row}
        return [
            {"name": "thread_name", **about, "args": {"name": name}},
            {"name": "thread_sort_index", **about, "args": {"sort_index": place}},
        ]


def _numbered(name: str, number: int) -> str:
    return f"{name} ({number + 1})" if number else name


def introduction(rank: int, host: str, job: str) -> list[Event]:
    """What names the process of ``rank`` and its ``job``, and puts it in its place among the others."""
    return [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank} ({host})"}},
        {"name": "process_labels", "ph": "M", "pid": rank, "args": {"labels": job}},
        {"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}},
    ]


def translate(native: Iterable[dict[str, Any]], rows: Rows, offset: int) -> list[Event]:
    """Turns what `_core.Session.take_trace` gave into events.

    ``offset``: nanoseconds from the monotonic clock to the Unix epoch; times in a trace are microseconds.
    """
    found: list[Event] = []
    for one in native:
        if one["kind"] in ("span", "mark", "step"):
            noted = _step(one) if one["kind"] == "step" else _noted(one)
            found += _of_track(noted, rows, offset)
            continue
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


def translate_recorded(recorded: Iterable[Recorded], rows: Rows, offset: int) -> list[Event]:
    """Turns what Python code has recorded into events; ``offset`` as for `translate`."""
    return [event for one in recorded for event in _of_track(one, rows, offset)]


def _noted(one: dict[str, Any]) -> Recorded:
    """What native code has recorded, which does not say what it does not know."""
    details = {key: one[key] for key, none in (("bytes", 0), ("peer", -1)) if one[key] != none}
    end = one["end"] if one["kind"] == "span" else None
    return Recorded(one["track"], one["name"].decode(errors="replace"), one["begin"], end, details, False)


def _step(one: dict[str, Any]) -> Recorded:
    """A chunk's way through a step of a plan: in a row for each peer, and each kind of step."""
    verb, peer = one["verb"], one["peer"]
    track = f"plan {verb}" if peer < 0 else f"plan {verb}, rank {peer}"
    operation, more = _parted(one["operation"])
    details = {"operation": operation, "name": one["name"].decode(errors="replace")}
    if more:
        details["details"] = more
    if one["wire"]:
        details["wire"] = one["wire"]
    name = f"step {one['step']}, chunk {one['chunk']}"
    return Recorded(track, name, one["begin"], one["end"], details, False)


def _of_track(one: Recorded, rows: Rows, offset: int) -> list[Event]:
    end = one.begin if one.end is None else one.end
    row, names = rows.of_track(one.track, one.begin, end, nests=one.nests)
    kind = "program" if one.nests else one.track.partition(" ")[0]
    event = {"name": one.name, "cat": kind, "ph": "X", "ts": (one.begin + offset) / 1000}
    event |= {"pid": rows.rank, "tid": row}
    if one.end is None:
        event |= {"ph": "i", "s": "t"}
    else:
        event["dur"] = (one.end - one.begin) / 1000
    if one.details:
        event["args"] = one.details
    return [*names, event]


def _parted(operation: str) -> tuple[str, str]:
    """The operation itself with its algorithm, and its details, which stand in brackets: "broadcast[...]/binomial".

    A trace cuts what is long: then the end of the details is missing, and the algorithm.
    """
    itself, _, rest = operation.partition("[")
    if "]" not in rest:
        return itself, rest
    details, _, algorithm = rest.rpartition("]")
    return itself + algorithm, details


def _operation(one: dict[str, Any]) -> Event:
    operation, details = _parted(one["operation"])
    collective, _, algorithm = operation.partition("/")
    collective = one["direction"] or collective
    name = one["name"].decode(errors="replace")
    args: dict[str, Any] = {"operation": collective, "dtype": one["dtype"], "bytes": one["bytes"]}
    args |= {"ranks": one["ranks"]}
    if algorithm:
        args["algorithm"] = algorithm
    if details:
        args["details"] = details
    if one["wire"]:
        args["wire"] = one["wire"]
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


def totals(
    before: Iterable[dict[str, Any]], after: Iterable[dict[str, Any]], rows: Rows, at: int
) -> list[Event]:
    """What each link has carried between two results of `_core.Session.link_statistics`, as marks at ``at``.

    ``at``: Unix time in nanoseconds.
    """
    old = {link["rank"]: link for link in before}
    found: list[Event] = []
    for link in after:
        peer = link["rank"]
        counts = {key: link[key] - old.get(peer, {}).get(key, 0) for key in ("sent", "received", "lost")}
        if not any(counts.values()):
            continue
        row, names = rows.of_link(peer)
        args = {"peer": peer, "transport": link["transport"], **counts}
        about = {"name": "total", "cat": "link", "ph": "i", "s": "t", "ts": at / 1000}
        found += [*names, {**about, "pid": rows.rank, "tid": row, "args": args}]
    return found


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
    """The event as one line of JSON; what is no number and no text in it is shown as Python shows it."""
    return json.dumps(event, separators=(",", ":"), default=repr)
