"""Files of timelines, read: one that is still written, or whose rank was killed, is read as far as it goes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["Event", "jobs_of", "load", "merged"]

Event = dict[str, Any]


def load(path: str | Path) -> list[Event]:
    """The events of a file. Raises OSError if it cannot be read, ValueError if it is no timeline."""
    text = Path(path).read_text(encoding="utf-8", errors="replace").rstrip()
    for closed in (text, text.rstrip(",") + "]", _whole_lines(text) + "]"):
        try:
            found = json.loads(closed)
        except ValueError:
            continue
        if isinstance(found, dict):  # the other form of such files
            found = found.get("traceEvents")
        if isinstance(found, list) and all(isinstance(one, dict) and "ph" in one for one in found):
            return found
    raise ValueError(f"{path} is no timeline: expected a JSON array of trace events")


def _whole_lines(text: str) -> str:
    """Without the line at the end, which may be torn."""
    return text.rpartition("\n")[0].rstrip().rstrip(",")


def merged(files: Iterable[list[Event]]) -> list[Event]:
    """The events of several files, in the order of their times; what names ranks and rows comes first, and once."""
    names: dict[str, Event] = {}
    events: list[Event] = []
    for file in files:
        for event in file:
            if event["ph"] == "M":
                names.setdefault(json.dumps(event, sort_keys=True), event)
            else:
                events.append(event)
    return [*names.values(), *sorted(events, key=lambda event: float(event.get("ts", 0)))]


def jobs_of(events: Iterable[Event]) -> set[str]:
    """The jobs that a file has events of, as far as it says so."""
    named = [event.get("args") for event in events if event.get("name") == "process_labels"]
    return {str(args["labels"]) for args in named if isinstance(args, dict) and "labels" in args}
