"""Which job a reducer takes, and whose place it gives it. Pure: it has no clock.

A job that has been taken holds a place and memory before its workers come. So that nobody can hold them all that way:

- one host may hold half of the places and half of the memory with jobs whose workers have not come (one such job it
  may always have, of any size);
- a job whose workers have not come for `Bounds.join` seconds loses its place when a newcomer needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

__all__ = ["Bounds", "Decision", "JobPlace", "admit"]


class JobPlace(Protocol):
    """What a job holds."""

    host: str  # that asked for it
    memory: int  # bytes
    begun: float  # seconds
    joined: bool  # all of its workers have come


P = TypeVar("P", bound=JobPlace)


@dataclass(frozen=True)
class Bounds:
    """Of all jobs together: ``jobs`` and ``memory`` in bytes. ``join``: seconds that a job's workers have to come."""

    jobs: int
    memory: int
    join: float


@dataclass
class Decision(Generic[P]):
    """``refusal``: why the newcomer is not taken, "" if it is; then ``going`` lose their places to it.

    ``missing``: jobs of other hosts whose workers have not come while it was refused for want of room.
    """

    refusal: str = ""
    going: list[P] = field(default_factory=list)
    missing: list[P] = field(default_factory=list)


def admit(held: Sequence[P], host: str, workers: int, needed: int, bounds: Bounds, now: float) -> Decision[P]:
    """Decides on a job of ``workers`` workers that ``host`` asks for and that may use ``needed`` bytes."""
    going: list[P] = []
    late = sorted(
        (place for place in held if not place.joined and now - place.begun >= bounds.join),
        key=lambda place: place.begun,
    )
    own = [place for place in held if place.host == host and not place.joined]
    over = ""
    while over := _over_half(own, host, needed, bounds):
        oldest = next((place for place in late if place in own), None)
        if oldest is None:
            break
        own.remove(oldest)
        late.remove(oldest)
        going.append(oldest)
    while lack := _lack([place for place in held if place not in going], workers, needed, bounds):
        if not late:
            break
        going.append(late.pop(0))
    if lack:
        return Decision(lack, missing=[place for place in held if place.host != host and not place.joined])
    return Decision(over) if over else Decision(going=going)


def _over_half(own: Sequence[JobPlace], host: str, needed: int, bounds: Bounds) -> str:
    memory = sum(place.memory for place in own) + needed
    if own and (2 * (len(own) + 1) > bounds.jobs or 2 * memory > bounds.memory):
        return f"the workers of {len(own)} other jobs of {host} have not come yet; it may ask again when they have"
    return ""


def _lack(held: Sequence[JobPlace], workers: int, needed: int, bounds: Bounds) -> str:
    if len(held) >= bounds.jobs:
        return f"it has {bounds.jobs} jobs already (--jobs)"
    left = bounds.memory - sum(place.memory for place in held)
    if needed > left:
        return f"{workers} workers may need {needed >> 20} MiB, and {left >> 20} MiB are left (--memory)"
    return ""
