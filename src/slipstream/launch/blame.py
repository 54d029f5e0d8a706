"""Ranks that blame each other: which of them, or which host, the others have lost.

A rank that has lost another one says so in its error, and tells the ranks that it reaches: they have the same error at
second hand. So an error at first hand shows that there was no way to a rank. One at second hand shows only that there
is a way from the rank that has told of it, even to the rank that it takes for lost. A rank that has lost all others at
once takes itself for lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slipstream.base.errors import HEARD_NOBODY

__all__ = ["Accusation", "Judgement", "judge", "named"]

# What the engine says if a rank has not been reached for a heartbeat (native/engine/fabric.cpp, native/transport/tcp).
_NO_WAY = re.compile(
    "has sent nothing for|could not be opened again|does not answer|cannot be reached: |connection but is silent"
)
# The accused process has ended, or has given the accuser up: it may have done so because of another rank.
_GIVEN_UP = "has given up the connection that broke"
_ENDED = re.compile(
    "has given up the (connection|link)|died or was killed|nothing listens there|closed its connection| is gone: "
    r"|left the job|finished \(exit code"
)


@dataclass(frozen=True)
class Accusation:
    """Why ``rank`` failed. ``lost``: the rank that is lost, if any; ``told_by``: the rank that says so, if any.

    A rank may be told that it is lost itself.
    """

    rank: int
    lost: int | None
    text: str
    told_by: int | None = None

    @property
    def proves(self) -> bool:
        """Whether it shows that there was no way to the rank that is lost, whose process may live."""
        other = self.lost not in (None, self.rank) and HEARD_NOBODY not in self.text
        return other and self.told_by is None and _NO_WAY.search(self.text) is not None

    @property
    def of_itself(self) -> bool:
        """Whether it has found that it is the one with which nobody else could talk."""
        return self.lost == self.rank and self.told_by is None and HEARD_NOBODY in self.text

    @property
    def of_an_end(self) -> bool:
        """Whether it says no more than that the other one has ended, or has left."""
        return _NO_WAY.search(self.text) is None and _ENDED.search(self.text) is not None


@dataclass(frozen=True)
class Judgement:
    """The ``cause`` is the rank whose error tells most. ``saying``: what all of them say together; "" if no more."""

    cause: int
    saying: str = ""


def judge(
    accusations: Sequence[Accusation], host_of: Callable[[int], str], reports: int | None = None
) -> Judgement:
    """The cause, as far as these tell, in the order of arrival: there is one of them at least, one of a rank at most.

    It is the first rank, or the rank whose loss made that fail, and so on. If ranks blame each other, the one counts
    that most others have no way to: the host, or the hosts, on one end of all the ways that are missing, if they are on
    different ones. If nobody can tell which, it is the first that does not only see that another one has ended.
    ``reports``: how many there are, if these are not all.
    """
    number = len(accusations) if reports is None else reports
    of_rank = {one.rank: one for one in accusations}
    one, seen = accusations[0], list[Accusation]()
    while one not in seen:
        seen.append(one)
        if one.lost is None or one.lost not in of_rank:
            return Judgement(one.rank)
        one = of_rank[one.lost]
    circle = {one.rank for one in seen[seen.index(one) :]}
    near = [one for one in accusations if one.rank in circle or one.lost in circle]
    case = _Case(accusations, near, host_of, number)
    if alone := case.alone():
        return case.of_the_alone(alone)
    # They have lost each other: one that accuses itself is no more at fault.
    others = [one for one in accusations if HEARD_NOBODY not in one.text]
    if 0 < len(others) < len(accusations):
        return judge(others, host_of, number)
    return case.of_hosts() if case.spans_hosts else case.of_ranks()


class _Case:
    """Ranks that blame each other, ``near`` them those that blame one of them, and all others."""

    def __init__(
        self,
        all_: Sequence[Accusation],
        near: Sequence[Accusation],
        host_of: Callable[[int], str],
        reports: int,
    ) -> None:
        self._all = all_
        self._near = near
        self._host_of = host_of
        self._reports = reports

    @property
    def spans_hosts(self) -> bool:
        return any(one.proves and self._crosses(one) for one in self._near)

    def alone(self) -> set[str]:
        """Hosts whose ranks have heard from no other one; none if others have lost each other, too."""
        found = {self._host_of(one.rank) for one in self._all if one.of_itself}
        apart = [one for one in self._all if one.proves and self._crosses(one)]
        known = all(found & self._ends(one) for one in apart)
        return found if known else set()

    def of_the_alone(self, hosts: set[str]) -> Judgement:
        if len(hosts) == 1:
            return self._cut_off(hosts, alone=True)
        first = next(one for one in self._all if one.of_itself)
        others = {self._host_of(one.rank) for one in self._all} - hosts
        fault = (
            "their networks are likely to be at fault" if others else "the network between them is at fault"
        )
        return Judgement(first.rank, f"hosts {_listed(hosts)} heard from no other host: {fault}")

    def of_ranks(self) -> Judgement:
        found = self._most_lost()
        if len(found) != 1:
            return Judgement(self._first(self._near).rank)
        (rank,) = found
        accusers = [one for one in self._all if one.lost == rank != one.rank]
        return Judgement(self._first(accusers).rank, f"{self._count(accusers)} name rank {rank} as lost")

    def of_hosts(self) -> Judgement:
        """There are hosts without which no others have lost each other, or else it is the network between them."""
        apart = [one for one in self._all if one.proves and self._crosses(one)]
        pairs = {frozenset(self._ends(one)) for one in apart}
        ends, talking = set[str]().union(*pairs), self._talking()
        common = ends.intersection(*pairs)
        if len(pairs) == 1 and len(silent := ends - self._heard()) == 1:
            return self._cut_off(silent, only_from=next(iter(ends - silent)))
        if len(pairs) > 1 and len(common) == 1 and not common & talking:
            return self._cut_off(common)
        sides, silent = self._sides(pairs), ends - talking
        others = [side for side in sides if side & talking]
        if len(others) == 1 and all(len(pair & silent) == 1 for pair in pairs):
            return self._cut_off(silent, only_from=next(iter(ends - silent)) if len(pairs) == 1 else "")
        first = self._first(apart)
        between = _listed(ends)
        if len(sides) == 2 and all(len(side) > 1 for side in sides):
            only = f", or only between hosts {between}" if len(pairs) == 1 else ""
            between = f"{' and hosts '.join(sorted(map(_listed, sides)))} is at fault{only}"
        else:
            between += " is at fault"
        between = f"the network between hosts {between}"
        if len(pairs) == 1 and any(one.rank == one.lost == first.lost for one in self._all):
            lives = f"rank {first.lost} lives, and others reached it"
            return Judgement(first.rank, f"{lives}: it stood still for a while, or {between}")
        return Judgement(first.rank, f"ranks on both sides have lost each other: {between}")

    def _sides(self, pairs: set[frozenset[str]]) -> list[set[str]]:
        """Hosts that have talked to each other, together: of each host in ``pairs``. [] if such hosts are together."""
        sides: list[set[str]] = []
        for way in [*self._ways(), *({host} for pair in pairs for host in pair)]:
            if way in pairs:  # one way works, and not the other one
                continue
            joined = [side for side in sides if side & way]
            sides = [side for side in sides if side not in joined] + [set(way).union(*joined)]
        if any(pair <= side for side in sides for pair in pairs):
            return []
        ends = set[str]().union(*pairs)
        return [side for side in sides if side & ends]

    def _ways(self) -> list[frozenset[str]]:
        """Of two hosts each, of which one has told the other."""
        ways = [
            frozenset(map(self._host_of, (one.rank, one.told_by)))
            for one in self._all
            if one.told_by is not None
        ]
        return [way for way in ways if len(way) == 2]

    def _heard(self) -> set[str]:
        """Hosts that have told another one, or have been told."""
        return set[str]().union(*self._ways())

    def _talking(self) -> set[str]:
        """The same without those that have only been told that they are lost themselves: nobody has heard of these."""
        talking = set[str]()
        for one in self._all:
            if one.told_by is not None and self._host_of(one.told_by) != (here := self._host_of(one.rank)):
                talking.add(self._host_of(one.told_by))
                if one.lost is None or self._host_of(one.lost) != here:
                    talking.add(here)
        return talking

    def _cut_off(self, hosts: set[str], *, only_from: str = "", alone: bool = False) -> Judgement:
        """``only_from``: the one other host of which that is known at first hand, if it is one.

        ``alone``: it has heard from no other host, and they may have heard from it.
        """

        def inside(rank: int | None) -> bool:
            return rank is not None and self._host_of(rank) in hosts

        several = len(hosts) > 1
        what = f"host{'s' * several} {_listed(hosts)}"
        perhaps = f", or only from host {only_from}" if only_from else ""
        accusers = [one for one in self._all if inside(one.lost) and not inside(one.rank)]
        if alone and not any(one.proves for one in accusers):
            what += " heard from no other host: its network is likely to be at fault"
        else:
            what += f" {'were' if several else 'was'} cut off from the others{perhaps}, or stood still"
        if not accusers:
            own = [one for one in self._all if inside(one.rank) and (self._crosses(one) or one.of_itself)]
            return Judgement(
                self._first(own).rank, f"{what}: {named(sorted(one.rank for one in own))} there lost them"
            )
        lost = sorted({one.lost for one in accusers if one.lost is not None})
        return Judgement(
            self._first(accusers).rank, f"{what}: {self._count(accusers)} name {named(lost)} there as lost"
        )

    def _ends(self, one: Accusation) -> set[str]:
        return {self._host_of(rank) for rank in (one.rank, one.lost) if rank is not None}

    def _crosses(self, one: Accusation) -> bool:
        return one.lost is not None and self._host_of(one.lost) != self._host_of(one.rank)

    def _count(self, accusers: Sequence[Accusation]) -> str:
        return f"the reports of {len(accusers)} of {self._reports} ranks"

    def _first(self, those: Sequence[Accusation]) -> Accusation:
        """The first that shows most: one that has given the other up knows why, and its error tells more."""

        def order(one: Accusation) -> tuple[bool, bool, bool, bool, int]:
            told = one.told_by is not None
            return not one.proves, one.of_an_end, _GIVEN_UP in one.text, told, self._all.index(one)

        return min(those, key=order)

    def _most_lost(self) -> set[int]:
        """The ranks that the largest number of others have no way to, or from."""
        apart: dict[int, set[int]] = {}
        for one in self._all:
            if one.proves and one.lost is not None:
                apart.setdefault(one.rank, set()).add(one.lost)
                apart.setdefault(one.lost, set()).add(one.rank)
        most = max(map(len, apart.values()), default=0)
        return {rank for rank, others in apart.items() if len(others) == most}


def _listed(hosts: Iterable[str]) -> str:
    return ", ".join(sorted(hosts))


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
