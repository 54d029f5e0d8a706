"""Ranks that blame each other: which of them, or which host, the others have lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

__all__ = ["Accusation", "Verdict", "judge", "named"]

# The accused process has ended, or has given the accuser up: it may have done so because of another rank.
_ENDED = re.compile(
    "has given up the (connection|link)|died or was killed|nothing listens there|closed its connection| is gone: "
    r"|left the job|finished \(exit code"
)


@dataclass(frozen=True)
class Accusation:
    """Why ``rank`` failed, in the order of arrival. ``lost``: the rank that it blames, if any.

    ``told``: it has this from another rank.
    """

    rank: int
    lost: int | None
    text: str
    told: bool = False

    @property
    def proves(self) -> bool:
        """Whether it shows that there is no way to the rank that is lost, whose process may live."""
        return self.lost is not None and not self.told and _ENDED.search(self.text) is None


@dataclass(frozen=True)
class Verdict:
    """The ``cause`` is the rank whose error tells most. ``saying``: what all of them say together; "" if no more."""

    cause: int
    saying: str = ""


def judge(accusations: Sequence[Accusation], host_of: Callable[[int], str]) -> Verdict:
    """The cause, as far as these tell: there is one of them at least, and one of a rank at most.

    It is the first rank, or the rank whose loss made that fail, and so on. If ranks blame each other, the one counts
    that most others have no way to: a host, if they are on different ones. If these are several, nobody can tell
    which: then it is the first that does not only see that another one has ended.
    """
    of_rank = {one.rank: one for one in accusations}
    one, seen = accusations[0], list[Accusation]()
    while one not in seen:
        seen.append(one)
        if one.lost is None or one.lost not in of_rank:
            return Verdict(one.rank)
        one = of_rank[one.lost]
    circle = seen[seen.index(one) :]
    first = min(
        circle, key=lambda one: (not one.proves, _ENDED.search(one.text) is not None, accusations.index(one))
    )
    if len({host_of(one.rank) for one in circle}) > 1:
        found = _most_lost(accusations, host_of)
        if len(found) == 1:
            return _cut_off(accusations, found.pop(), host_of)
        if found and first.proves:
            hosts = ", ".join(sorted(map(str, found)))
            return Verdict(
                first.rank,
                f"ranks on hosts {hosts} have lost each other: the network between these hosts is at fault",
            )
        return Verdict(first.rank)
    found = _most_lost(accusations, lambda rank: rank)
    return _silent(accusations, found.pop()) if len(found) == 1 else Verdict(first.rank)


def _most_lost(accusations: Sequence[Accusation], place_of: Callable[[int], Hashable]) -> set[Hashable]:
    """The places (hosts, or ranks) that the largest number of others have no way to, or from."""
    apart: dict[Hashable, set[Hashable]] = {}
    for one in accusations:
        if one.proves and one.lost is not None and place_of(one.rank) != place_of(one.lost):
            apart.setdefault(place_of(one.rank), set()).add(place_of(one.lost))
            apart.setdefault(place_of(one.lost), set()).add(place_of(one.rank))
    most = max(map(len, apart.values()), default=0)
    return {place for place, others in apart.items() if len(others) == most}


def _cut_off(accusations: Sequence[Accusation], host: Hashable, host_of: Callable[[int], str]) -> Verdict:
    def names_it(one: Accusation) -> bool:
        return one.lost is not None and host_of(one.lost) == host and host_of(one.rank) != host

    def is_from_it(one: Accusation) -> bool:
        return one.lost is not None and host_of(one.rank) == host and host_of(one.lost) != host

    what = f"host {host} is cut off from the others"
    accusers = [one for one in accusations if names_it(one)]
    if not accusers:
        own = [one for one in accusations if is_from_it(one)]
        cause = min(own, key=lambda one: (not one.proves, accusations.index(one)))
        return Verdict(cause.rank, f"{what}: {named(sorted(one.rank for one in own))} there have lost them")
    lost = sorted({one.lost for one in accusers if one.lost is not None})
    cause = min(accusers, key=lambda one: (not one.proves, accusations.index(one)))
    count = f"{len(accusers)} of {len(accusations)}"
    return Verdict(
        cause.rank, f"{what}: {named(lost)} there, as the reports of {count} ranks say, cannot be reached"
    )


def _silent(accusations: Sequence[Accusation], rank: Hashable) -> Verdict:
    accusers = [one for one in accusations if one.lost == rank]
    cause = min(accusers, key=lambda one: (not one.proves, accusations.index(one)))
    return Verdict(
        cause.rank, f"{len(accusers)} of {len(accusations)} ranks that failed have lost rank {rank}"
    )


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
