"""What the ranks of a group have announced, and which operations follow from that: pure, and the same on all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slipstream.base.spans import format_spans

__all__ = ["EVERYONE", "JOIN", "Agreement", "Decision", "Key", "Request", "Sum", "unnamed"]

_MOST_KNOWN = 4096  # requests that travel as numbers
JOIN = "join"
"""The kind of request of a rank that takes part in all that the others call, until all of them have made it."""
EVERYONE = -2
"""What an operation needs that nobody can take part in without a call."""

Key = tuple[str, str]


def unnamed(number: int) -> Key:
    """What ranks match the operation by that is number ``number``, from 0, of those without a name."""
    return "", str(number)


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

    ``kind`` and ``name``: which one it is, such as "allreduce" and "loss". Without a name: its place among those
    without one says which. ``facts``: what has to be equal on all ranks, in words, in parts that "; " separates.
    ``labels``: what the parts are called where they differ, and behind a "|" what one that is empty means.
    ``form``: the same as data, for ranks that take part without a call of their own. ``needs``: a rank (its number in
    the job) without whose call there is nothing to do; -1: none; or `EVERYONE`. ``sum``: see `Sum`. ``own``: if all
    ranks say so, each starts it in the thread that has called it, and on a group of its choice.
    """

    kind: str
    name: str
    facts: str
    form: str = ""
    needs: int = -1
    sum: Sum | None = None
    labels: str = ""
    own: bool = False

    @property
    def has_name(self) -> bool:
        """Whether its name says which one it is; `JOIN` needs none."""
        return self.name != "" or self.kind == JOIN

    @property
    def key(self) -> Key:
        """What ranks match operations by that have names."""
        return self.kind, self.name

    @property
    def title(self) -> str:
        """What texts call it."""
        if self.kind == JOIN:
            return "join"
        return f"{self.kind} {self.name!r}" if self.has_name else f"{self.kind} (without a name)"


@dataclass(frozen=True)
class Decision:
    """An operation that all ranks have called, or have joined instead. ``mismatch``: how their calls differ, or "".

    ``request``: that of the first rank that called it. ``pauses``: how often each rank had waited before its call.
    ``joined``: some rank has not called it. ``own``: see `Request`.
    """

    key: Key
    mismatch: str
    request: Request
    pauses: tuple[int, ...]
    joined: bool
    own: bool = False


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
        self._announced: dict[Key, dict[int, Request]] = {}
        self._pauses: dict[Key, dict[int, int]] = {}
        self._paused = [0] * len(self._ranks)
        self._next = [0] * len(self._ranks)  # the number of each rank's next one without a name
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
        self._next = [0] * len(self._ranks)

    def keys(self, place: int, requests: Sequence[Request]) -> list[Key]:
        """What the others will know these by, once the rank at this place has announced them, in this order."""
        number = self._next[place]
        found = []
        for one in requests:
            found.append(one.key if one.has_name else unnamed(number))
            number += not one.has_name
        return found

    @property
    def anyone_joined(self) -> bool:
        """Whether a rank takes part in what it does not call."""
        return bool(self._joined)

    def missing(self) -> dict[Key, list[int]]:
        """The ranks (numbers in the job) that have not called what others have."""
        return {
            key: [
                rank
                for place, rank in enumerate(self._ranks)
                if place not in calls and (key[0] == JOIN or place not in self._joined)
            ]
            for key, calls in self._announced.items()
        }

    def lacking(self, key: Key) -> list[int]:
        """The ranks that have not called an operation, by their numbers in the job; of all threads."""
        calls = self._announced.get(key)
        if calls is None:
            return []
        absent = [place for place in range(len(self._ranks)) if place not in calls]
        return [self._ranks[place] for place in absent if place not in self._joined]

    def request(self, key: Key) -> Request:
        """That of a rank which has called what others have not."""
        return next(iter(self._announced[key].values()))

    def _take(self, place: int, requests: Sequence[Request | None]) -> None:
        for request in requests:
            if request is None:
                self._paused[place] += 1
                continue
            self._know(request)
            key = request.key
            if not request.has_name:
                key = unnamed(self._next[place])
                self._next[place] += 1
            self._announced.setdefault(key, {})[place] = request
            self._pauses.setdefault(key, {})[place] = self._paused[place]
            if request.kind == JOIN:
                self._joined.add(place)

    def _decisions(self) -> list[Decision]:
        size = len(self._ranks)
        found = []
        for key, calls in list(self._announced.items()):
            others = 0 if key[0] == JOIN else sum(place not in calls for place in self._joined)
            if len(calls) + others == size:
                found.append(self._decision(key, others > 0))
                if not key[0]:  # those who have joined have called it, so to speak
                    for place in self._joined:
                        self._next[place] = max(self._next[place], int(key[1]) + 1)
        if len(self._joined) == size:
            self._joined.clear()
        return found

    def _decision(self, key: Key, joined: bool) -> Decision:
        calls, pauses = self._announced.pop(key), self._pauses.pop(key)
        first = calls[min(calls)]
        mismatch = self._mismatch(calls)
        if not mismatch and joined:
            mismatch = self._lack(first, calls)
        told = tuple(pauses.get(place, 0) for place in range(len(self._ranks)))
        own = not joined and all(one.own for one in calls.values())
        return Decision(key, mismatch, first, told, joined, own)

    def _lack(self, request: Request, calls: dict[int, Request]) -> str:
        """Why it cannot do without a rank that has joined, or ""."""
        gone = [rank for place, rank in enumerate(self._ranks) if place not in calls]
        rank = gone[0] if request.needs == EVERYONE else request.needs
        if rank not in gone:
            return ""
        return (
            f"{request.title} cannot do without rank {rank}, which has joined (no more batches): call it before any "
            "rank joins, or after all have"
        )

    def _request(self, sent: int | list[Any] | None) -> Request | None:
        if sent is None:
            return None
        if isinstance(sent, int):
            return self._numbered[sent]
        told = _from_list(sent)
        number = self._known.get(told)
        return told if number is None else self._numbered[number]

    def _know(self, request: Request) -> None:
        if request in self._known:
            return
        if len(self._numbered) == _MOST_KNOWN:
            self._known.clear()
            self._numbered.clear()
        self._known[request] = len(self._numbered)
        self._numbered.append(request)

    def _mismatch(self, calls: dict[int, Request]) -> str:
        """How the calls of one operation differ, or ""."""
        first = calls[min(calls)]
        if all(one is first or (one.kind, one.facts) == (first.kind, first.facts) for one in calls.values()):
            return ""
        one_kind = all(one.kind == first.kind for one in calls.values())
        differing = _differing(list(calls.values())) if one_kind else {}
        sides: dict[str, list[int]] = {}
        for place, one in sorted(calls.items()):
            parts = [part or differing.get(i, ("", ""))[1] for i, part in enumerate(one.facts.split("; "))]
            words = ", ".join(filter(None, parts))
            sides.setdefault(words if one_kind else ": ".join(filter(None, (one.kind, words))), []).append(
                self._ranks[place]
            )
        told = [
            f"rank{'s' if len(ranks) > 1 else ''} {format_spans(sorted(ranks))} with {words}"
            for words, ranks in sides.items()
        ]
        if one_kind:
            names = [name for name, _ in differing.values() if name]
            what, differs = first.title, " and ".join(names) or f"{first.kind} arguments"
        else:
            what, differs = "an operation without a name", "operations"
        cure = "" if first.has_name else ". Where their orders differ, give operations a name="
        return f"Mismatched {differs}: {what} was called by {'; by '.join(told)}. All ranks must call it alike{cure}"


def _differing(calls: Sequence[Request]) -> dict[int, tuple[str, str]]:
    """The parts of the facts in which calls of one kind differ: their names, and what an empty one means."""
    labels = calls[0].labels.split("; ")
    parts = zip(*(one.facts.split("; ") for one in calls), strict=False)
    found = {}
    for number, (label, values) in enumerate(zip(labels, parts, strict=False)):
        if len(set(values)) > 1:
            name, _, empty = label.partition("|")
            found[number] = name, empty
    return found


def _as_list(request: Request) -> list[Any]:
    return list(vars(request).values())


def _from_list(sent: list[Any]) -> Request:
    kind, name, facts, form, needs, sum_, labels, own = sent
    return Request(kind, name, facts, form, needs, None if sum_ is None else Sum(*sum_), labels, own)
