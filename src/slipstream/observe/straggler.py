"""Which rank the others wait for, and why: its compute is slow, or its network. Pure functions of snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from slipstream.observe.metrics import Snapshot

__all__ = ["Straggler", "find_straggler"]

_SLOWER = 1.15  # times the others' median: what counts as slow compute
_LEAST_SHARE = 0.05  # of a step that the others lose by it
_RATE = 0.6  # of the others' rate: what counts as slow if all links of a rank are
_RATE_OF_ONE = 0.5  # if a single link is: that happens by chance sooner
_EXPOSED = 0.1  # of a step: below that no link matters
_LEAST_NOTES = 5  # of the rate of a link that is called slow: one low rate may be chance
_LATE = 0.1  # of the time of a run
_LEAST_LATE = 1.0  # seconds in all
_LATER = 2.0  # times the lateness of the next one


@dataclass(frozen=True)
class Straggler:
    """``cause``: compute, network or late. ``ranks``: of which that is said, usually one; ``text``: for people.

    ``seconds``: what the others lose by it in a step, None where that is unknown.
    """

    ranks: tuple[int, ...]
    host: str
    cause: str
    text: str
    seconds: float | None = None


@dataclass(frozen=True)
class _Link:
    source: int
    target: int
    rate: float  # bytes a second while it is busy, the best of late
    notes: int  # how many rates it is the best of

    def touches(self, rank: int) -> bool:
        return rank in (self.source, self.target)

    def is_known(self) -> bool:
        """Whether a low rate is that of the network."""
        return self.notes >= _LEAST_NOTES


def find_straggler(snapshots: Sequence[Snapshot]) -> Straggler | None:
    """What holds the job of these ranks back most; None if nothing stands out."""
    known = [one for one in snapshots if one]
    if len(known) < 2:
        return None
    return _slow_compute(known) or _slow_network(known) or _late(known)


def _slow_compute(snapshots: list[Snapshot]) -> Straggler | None:
    timed = [one for one in snapshots if one["steps"]["count"] >= 2]
    if len(timed) < 2:
        return None
    slowest = max(timed, key=lambda one: one["steps"]["all"]["compute"])
    compute = slowest["steps"]["all"]["compute"]
    others = median(one["steps"]["all"]["compute"] for one in timed if one is not slowest)
    step = median(one["steps"]["all"]["median"] for one in timed)
    if compute < _SLOWER * others or compute - others < _LEAST_SHARE * step:
        return None
    text = (
        f"rank {slowest['rank']} ({slowest['host']}): its compute is slow, {_ms(compute)} of a step where the other "
        f"ranks take {_ms(others)}; they wait for it"
    )
    return Straggler((slowest["rank"],), slowest["host"], "compute", text, compute - others)


def _slow_network(snapshots: list[Snapshot]) -> Straggler | None:
    timed = [one["steps"]["all"] for one in snapshots if one["steps"]["count"] >= 2]
    if timed and median(one["exposed"] for one in timed) < _EXPOSED * median(one["median"] for one in timed):
        return None
    hosts = {one["rank"]: one["host"] for one in snapshots}
    links = list(_links(snapshots))
    ends = {rank for link in links for rank in (link.source, link.target)}
    for rank, touching in sorted(
        ((rank, [one for one in links if one.touches(rank)]) for rank in ends),
        key=lambda found: max(link.rate for link in found[1]),
    ):
        rest = [link.rate for link in links if link not in touching]
        best = max(link.rate for link in touching)
        if sum(link.is_known() for link in touching) >= 2 and rest and best < _RATE * median(rest):
            text = (
                f"rank {rank} ({hosts[rank]}): its network is slow, {_rate(best)} at most over its links where those "
                f"of other ranks carry {_rate(median(rest))}"
            )
            return Straggler((rank,), hosts[rank], "network", text)
    return _slow_link(links, hosts)


def _slow_link(links: list[_Link], hosts: dict[int, str]) -> Straggler | None:
    known = [link for link in links if link.is_known()]
    if not known or len(links) < 2:
        return None
    slowest = min(known, key=lambda link: link.rate)
    rest = median(link.rate for link in links if link is not slowest)
    if slowest.rate >= _RATE_OF_ONE * rest:
        return None
    source, target = slowest.source, slowest.target
    others = "the other link carries" if len(links) == 2 else "the median of the other links is"
    text = (
        f"the link from rank {source} ({hosts[source]}) to rank {target} ({hosts[target]}) carries "
        f"{_rate(slowest.rate)} while it is busy; {others} {_rate(rest)}"
    )
    return Straggler((source, target), hosts[source], "network", text)


def _links(snapshots: Iterable[Snapshot]) -> Iterable[_Link]:
    known = {one["rank"] for one in snapshots}
    for one in snapshots:
        for link in one["links"]:  # those to reducers are not filled for as long as a rate needs
            rate = link.get("best_rate", 0.0)
            if link["transport"] == "tcp" and link["rank"] in known and rate > 0:
                yield _Link(one["rank"], link["rank"], rate, link["rate_notes"])


def _late(snapshots: list[Snapshot]) -> Straggler | None:
    """Of programs that mark no steps: whose operations begin long after the others'."""
    if any(one["steps"]["count"] >= 2 for one in snapshots):
        return None
    late: dict[int, float] = {}
    for one in snapshots:
        for rank, seconds in one["late"].items():
            late[int(rank)] = max(late.get(int(rank), 0.0), seconds)
    for one in snapshots:  # a rank that waits for a third one answers late, too: that is not its own time
        if one["rank"] in late:
            late[one["rank"]] -= max(one["late"].values(), default=0.0)
    ordered = sorted(late.items(), key=lambda item: -item[1])
    if not ordered:
        return None
    (rank, seconds), next_one = ordered[0], ordered[1][1] if len(ordered) > 1 else 0.0
    time = max(one["time"] for one in snapshots)
    if seconds < max(_LEAST_LATE, _LATE * time) or seconds < _LATER * next_one:
        return None
    host = next((one["host"] for one in snapshots if one["rank"] == rank), "")
    text = f"rank {rank} ({host}): it comes late to operations; the others have waited {seconds:.1f} s for it in all"
    return Straggler((rank,), host, "late", text)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _rate(rate: float) -> str:
    return f"{rate * 8e-6:.3g} Mbit/s"
