"""The search: from what is known of candidates to the next one to try, or to the choice. Pure.

All ranks give it the same numbers, so they decide alike. It goes through lanes, ways and chunks in turn, and tries few
values of each: those that have gained lead to their neighbours, the others to nothing.

Luck makes choices, too: a few connections may happen to take the good paths, and what was measured while another
program ran looks slow. So the setting that a job began with is measured again at the end, where the better time counts;
and the one that seems the best, with connections of its own, where the worse time counts. Of quick operations the mean
counts, which favours neither. What was not measured again is not chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slipstream.comm.tuning.candidates import FEW_LANES, Candidate, Space
from slipstream.comm.tuning.statistics import is_quick

__all__ = ["GAIN", "Found", "chosen", "next_to_try"]

GAIN = 0.03  # what gains less is noise, and the setting that stands stays
_MORE_LANES = (4, 16, 32, 64)
_QUICK_MORE_LANES = (8, 16, 32, 64)
_FEWER_LANES = (4, 1)
_NEIGHBOURS = {1: (2,), 4: (8,), 8: (4,)}
_MOST_AGAIN = 2  # beside the start
_LEAST_CHUNK, _MOST_CHUNK = 64 << 10, 2 << 20

Seconds = Callable[[Candidate], float]


class _Untried(Exception):
    def __init__(self, candidate: Candidate) -> None:
        super().__init__(str(candidate))
        self.candidate = candidate


@dataclass(frozen=True)
class Found:
    """What is known of candidates: ``first``, the seconds that each took; ``again``, those that were measured twice."""

    first: dict[Candidate, float] = field(default_factory=dict)
    again: dict[Candidate, float] = field(default_factory=dict)

    def add(self, candidate: Candidate, seconds: float) -> None:
        """A candidate has been measured."""
        (self.again if candidate in self.first else self.first)[candidate] = seconds

    def seconds(self, candidate: Candidate, start: Candidate) -> float:
        """What counts, once a candidate has been measured."""
        once = self.first[candidate]
        again = self.again.get(candidate, once)
        if is_quick(self.first[start]):
            return (once + again) / 2
        return (min if candidate == start else max)(once, again)


def next_to_try(space: Space, found: Found) -> Candidate | None:
    """The candidate to measure next, perhaps again; None if the search is over, and `chosen` knows the choice."""
    try:
        best = _search(space, _lookup(found.first))
    except _Untried as untried:
        return untried.candidate
    if best == space.start:
        return None
    if space.start not in found.again:
        return space.start
    best = _best(space, found, found.first)
    confirmed = best == space.start or best in found.again or len(found.again) > _MOST_AGAIN
    return None if confirmed else best


def chosen(space: Space, found: Found) -> Candidate:
    """The candidate that gains most over the one that the search began with; that one, if none gains."""
    return _best(space, found, found.again or found.first)


def _best(space: Space, found: Found, among: Iterable[Candidate]) -> Candidate:
    return _least(space.start, among, lambda one: found.seconds(one, space.start))


def _lookup(known: Mapping[Candidate, float]) -> Seconds:
    def seconds(candidate: Candidate) -> float:
        if candidate not in known:
            raise _Untried(candidate)
        return known[candidate]

    return seconds


def _search(space: Space, seconds: Seconds) -> Candidate:
    best = space.start if space.start.lanes is None else _lanes(space, seconds)
    best = _least(best, (replace(best, way=way) for way in space.ways), seconds)
    return _chunks(best, space.most_chunk, seconds)


def _least(stands: Candidate, others: Iterable[Candidate], seconds: Seconds) -> Candidate:
    """The candidate that gains most over the one that stands; that one, if none gains."""
    best, least = stands, seconds(stands) * (1 - GAIN)
    for other in others:
        if seconds(other) < least:
            best, least = other, seconds(other)
    return best


def _lanes(space: Space, seconds: Seconds) -> Candidate:
    """More lanes than there are; fewer only if more gain nothing, and as long as they cost nothing.

    Over several paths one lane is very slow, so it is not tried in vain. A connection takes as long to open as quick
    operations: among those, 16 lanes are tried only if 8 gain.
    """
    best = start = space.start
    now = start.lanes or FEW_LANES
    quick = is_quick(seconds(start))
    before = now
    for lanes in _QUICK_MORE_LANES if quick else _MORE_LANES:
        if lanes > now and (lanes <= (8 if quick else 16) or before in (best.lanes, now)):
            best = _least(best, [replace(start, lanes=lanes)], seconds)
        before = lanes
    if best == start:
        for lanes in _FEWER_LANES:
            if lanes < now:
                fewer = replace(start, lanes=lanes)
                best = _least(best, [fewer], seconds)
                if seconds(fewer) > seconds(start) * (1 + GAIN):
                    break
    neighbours = _NEIGHBOURS.get(best.lanes or 0, ()) if best != start else ()
    return _least(best, (replace(start, lanes=lanes) for lanes in neighbours if lanes != now), seconds)


def _chunks(best: Candidate, most: int, seconds: Seconds) -> Candidate:
    """Twice as large as long as that gains; else half as large, likewise."""
    for larger in (True, False):
        before = best
        while True:
            size = best.way.chunk_bytes * 2 if larger else best.way.chunk_bytes // 2
            if not _LEAST_CHUNK <= size <= _MOST_CHUNK or (larger and size > most):
                break
            after = _least(best, [replace(best, way=replace(best.way, chunk_bytes=size))], seconds)
            if after == best:
                break
            best = after
        if best != before:
            break
    return best
