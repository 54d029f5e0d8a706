"""What the ranks of a group have announced, and which operations follow from that: pure, and the same on all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slipstream.base.spans import format_spans

__all__ = ["JOIN", "Agreement", "Decision", "Request", "Sum"]

_MOST_KNOWN = 4096  # requests that travel as numbers
JOIN = "join"
"""The kind of request of a rank that takes part in all that the others call, until all of them have made it."""


class Sum(NamedTuple):
    """An all-reduce that may share a buffer with others: codes of dtype and operation, elements, bytes, factors."""

    dtype: int
    op: int
    elements: int
    nbytes: int
    prescale: float = 1.0
    postscale: float = 1.0

    @property
    def alike(self) -> tuple[int, int, float, float]:
        """What those that share a buffer have in common."""
        return self.dtype, self.op, self.prescale, self.postscale


@dataclass(frozen=True)
class Request:
    """An operation that a rank has called.

    ``kind`` and ``name``: which one it is, such as "allreduce" and "loss". ``facts``: what has to be equal on
    all ranks, in words. ``form``: the same as data, for ranks that take part without a call of their own. ``needs``: a
    rank (its number in the job) without whose call there is nothing to do; -1: none. ``sum``: see `Sum`.
    """

    kind: str
    name: str
    facts: str
    form: str = ""
    needs: int = -1
    sum: Sum | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What ranks match operations by."""
        return self.kind, self.name


@dataclass(frozen=True)
class Decision:
    """An operation that all ranks have called, or have joined instead. ``mismatch``: how their calls differ, or "".

    ``request``: that of the first rank that called it. ``pauses``: how often each rank had waited before its call.
    ``joined``: some rank has not called it.
    """

    key: tuple[str, str]
    mismatch: str
    request: Request
    pauses: tuple[int, ...]
    joined: bool


class Agreement:
    """One rank's copy of what all ranks of a group know.

    It changes by `decide` and `forget` alone; ranks give the same messages to the one and call the other at the same
    time: so the copies stay equal. ``ranks``: their numbers in the job. ``room``: bytes that sums may share, as this
    rank was told.

    After `decide`: ``room`` is the least of all ranks; ``launched`` the most of all ranks (see `encode`), and
    ``reasons`` theirs; ``quiet``, whether no rank has announced anything.
    """

    def __init__(self, ranks: Sequence[int], room: int = 0) -> None:
        self.room = self._room = room
        self.launched = 0
        self.reasons: list[tuple[int, str]] = []
        self.quiet = True
        self._ranks = tuple(ranks)
        self._known: dict[Request, int] = {}
        self._numbered: list[Request] = []
        # In the order of the first announcements. By the place of a rank in the group.
        self._announced: dict[tuple[str, str], dict[int, Request]] = {}
        self._pauses: dict[tuple[str, str], dict[int, int]] = {}
        self._paused = [0] * len(self._ranks)
        self._joined: set[int] = set()

    def encode(self, requests: Sequence[Request | None], launched: int = 0, reason: str = "") -> bytes:
        """The message that announces requests: numbers of those that ranks have announced before, else all of it.

        None between two of them: this rank waited there. ``launched``: how much of a locked order, see `order`, and
        ``reason``, why that ended.
        """
        entries: list[Any] = [
            None if one is None else self._known.get(one, _as_list(one)) for one in requests
        ]
        return json.dumps([self._room, launched, reason, entries], separators=(",", ":")).encode()

    def decide(self, messages: Sequence[bytes]) -> list[Decision]:
        """Takes a message of each rank. Returns the operations that all ranks have called now, in their order."""
        told = [json.loads(message) for message in messages]
        self.room = min(room for room, _, _, _ in told)
        self.launched = max(launched for _, launched, _, _ in told)
        self.reasons = [(rank, one[2]) for rank, one in zip(self._ranks, told, strict=True) if one[2]]
        self.quiet = not any(entries for _, _, _, entries in told)
        announced = [[self._request(entry) for entry in entries] for _, _, _, entries in told]
        for place, requests in enumerate(announced):
            self._take(place, requests)
        return self._decisions()

    def forget(self) -> None:
        """Drops what some ranks have announced: each of them announces it again, if need be."""
        self._announced.clear()
        self._pauses.clear()

    @property
    def anyone_joined(self) -> bool:
        """Whether a rank takes part in what it does not call."""
        return bool(self._joined)

    def missing(self) -> dict[tuple[str, str], list[int]]:
        """The ranks (numbers in the job) that have not called what others have."""
        return {
            key: [
                rank
                for place, rank in enumerate(self._ranks)
                if place not in calls and (key[0] == JOIN or place not in self._joined)
            ]
            for key, calls in self._announced.items()
        }

    def _take(self, place: int, requests: Sequence[Request | None]) -> None:
        for request in requests:
            if request is None:
                self._paused[place] += 1
                continue
            self._know(request)
            self._announced.setdefault(request.key, {})[place] = request
            self._pauses.setdefault(request.key, {})[place] = self._paused[place]
            if request.kind == JOIN:
                self._joined.add(place)

    def _decisions(self) -> list[Decision]:
        size = len(self._ranks)
        found = []
        for key, calls in list(self._announced.items()):
            others = 0 if key[0] == JOIN else sum(place not in calls for place in self._joined)
            if len(calls) + others == size:
                found.append(self._decision(key, others > 0))
        if len(self._joined) == size:
            self._joined.clear()
        return found

    def _decision(self, key: tuple[str, str], joined: bool) -> Decision:
        calls, pauses = self._announced.pop(key), self._pauses.pop(key)
        first = calls[min(calls)]
        mismatch = self._mismatch(key, calls)
        if (
            not mismatch
            and joined
            and first.needs in self._ranks
            and self._ranks.index(first.needs) not in calls
        ):
            mismatch = f"{key[0]} {key[1]!r} cannot do without rank {first.needs}, which has joined (no more batches)"
        told = tuple(pauses.get(place, 0) for place in range(len(self._ranks)))
        return Decision(key, mismatch, first, told, joined)

    def _request(self, sent: int | list[Any] | None) -> Request | None:
        if sent is None:
            return None
        return self._numbered[sent] if isinstance(sent, int) else _from_list(sent)

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
        for place, request in sorted(calls.items()):
            by_facts.setdefault(request.facts, []).append(self._ranks[place])
        if len(by_facts) == 1:
            return ""
        sides = [
            f"rank{'s' if len(ranks) > 1 else ''} {format_spans(sorted(ranks))} with {facts}"
            for facts, ranks in by_facts.items()
        ]
        return f"{key[0]} {key[1]!r} was called by {'; by '.join(sides)}. All ranks must call it alike"


def _as_list(request: Request) -> list[Any]:
    return [request.kind, request.name, request.facts, request.form, request.needs, request.sum]


def _from_list(sent: list[Any]) -> Request:
    kind, name, facts, form, needs, sum_ = sent
    return Request(kind, name, facts, form, needs, None if sum_ is None else Sum(*sum_))
