"""What the ranks of a group have announced, and which operations follow from that: pure, and the same on all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.base.spans import format_spans

__all__ = ["Agreement", "Decision", "Request"]

_MOST_KNOWN = 4096  # requests that travel as numbers


@dataclass(frozen=True)
class Request:
    """An operation that a rank has called.

    ``kind`` and ``name``: which one it is, such as "allreduce" and "loss". ``facts``: what has to be equal on
    all ranks, in words.
    """

    kind: str
    name: str
    facts: str

    @property
    def key(self) -> tuple[str, str]:
        """What ranks match operations by."""
        return self.kind, self.name


@dataclass(frozen=True)
class Decision:
    """An operation that all ranks have called. ``mismatch``: how their calls differ; empty if they do not."""

    key: tuple[str, str]
    mismatch: str = ""


class Agreement:
    """One rank's copy of what all ranks of a group know.

    It changes by `decide` alone, to which all ranks give the same messages: so the copies stay equal.
    ``ranks``: their numbers in the job.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = tuple(ranks)
        self._known: dict[Request, int] = {}
        self._numbered: list[Request] = []
        # In the order of the first announcements. By the place of a rank in the group.
        self._announced: dict[tuple[str, str], dict[int, Request]] = {}

    def encode(self, requests: Sequence[Request]) -> bytes:
        """The message that announces requests: numbers of those that ranks have announced before, else all of it."""
        return json.dumps(
            [self._known.get(one, [one.kind, one.name, one.facts]) for one in requests], separators=(",", ":")
        ).encode()

    def decide(self, messages: Sequence[bytes]) -> list[Decision]:
        """Takes a message of each rank. Returns the operations that all ranks have called now, in their order."""
        announced = [[self._request(one) for one in json.loads(message)] for message in messages]
        for place, requests in enumerate(announced):
            for request in requests:
                self._know(request)
                self._announced.setdefault(request.key, {})[place] = request
        complete = [key for key, calls in self._announced.items() if len(calls) == len(self._ranks)]
        return [Decision(key, self._mismatch(key, self._announced.pop(key))) for key in complete]

    def missing(self) -> dict[tuple[str, str], list[int]]:
        """The ranks (numbers in the job) that have not called what others have."""
        return {
            key: [rank for place, rank in enumerate(self._ranks) if place not in calls]
            for key, calls in self._announced.items()
        }

    def _request(self, sent: int | list[str]) -> Request:
        return self._numbered[sent] if isinstance(sent, int) else Request(*sent)

    def _know(self, request: Request) -> None:
        if request in self._known:
            return
        if len(self._numbered) == _MOST_KNOWN:
            self._known.clear()
            self._numbered.clear()
        self._known[request] = len(self._numbered)
        self._numbered.append(request)

    def _mismatch(self, key: tuple[str, str], calls: dict[int, Request]) -> str:
        by_facts: dict[str, list[int]] = {}
        for place in range(len(self._ranks)):
            by_facts.setdefault(calls[place].facts, []).append(self._ranks[place])
        if len(by_facts) == 1:
            return ""
        sides = [
            f"rank{'s' if len(ranks) > 1 else ''} {format_spans(sorted(ranks))} with {facts}"
            for facts, ranks in by_facts.items()
        ]
        return f"{key[0]} {key[1]!r} was called by {'; by '.join(sides)}. All ranks must call it alike"
