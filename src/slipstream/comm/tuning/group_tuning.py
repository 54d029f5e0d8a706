"""The tuning of one group: its size classes, of which one tries at a time, and the numbers that its ranks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slipstream import _core
from slipstream.base.log import Log
from slipstream.comm.tuning.agreement import Agreements
from slipstream.comm.tuning.cache import cluster_name
from slipstream.comm.tuning.candidates import Candidate, Traffic
from slipstream.comm.tuning.job_tuning import JobTuning
from slipstream.comm.tuning.size_class import SizeClass
from slipstream.plan.choose import Choice
from slipstream.plan.topology import Topology

__all__ = ["GroupTuning"]

_log = Log("slipstream.tuning")

_USUAL_CALLS = 2  # a class with fewer is not waited for

# Compiles a choice for all-reduces. What it returns is the group's.
Compile = Callable[[Choice], Any]


class GroupTuning:
    """``job``: what the groups of the job share. ``native``: a group of the same ranks for the agreements alone.

    ``reducers``: how many serve the group. ``compile`` does not hold the group, nor do size classes hold this: without
    such a circle all of it goes with the group's last reference.
    """

    def __init__(
        self,
        job: JobTuning,
        session: _core.Session,
        native: _core.Group,
        topology: Topology,
        reducers: int,
        compile: Compile,
    ) -> None:
        self.job, self.topology = job, topology
        self._session, self._compile = session, compile
        self._ranks: Sequence[int] = native.ranks
        self._classes: dict[Traffic, SizeClass] = {}
        self._trying: SizeClass | None = None
        self._cluster = cluster_name(topology.hosts, topology.network, reducers)
        self.agreements = Agreements(session, native)

    def start(self, traffic: Traffic, choice: Choice) -> SizeClass:
        """What sees to the calls of a size class from now on."""
        entry = self.job.remembered(self._cluster, traffic)
        made = self._classes[traffic] = SizeClass(self, traffic, choice)
        if entry is not None and (choice.reducers or not entry.reducers):
            try:
                made.remember(entry.candidate, entry.seconds)
                self.write("remembered", traffic, entry.candidate, entry.seconds)
            except (
                ValueError
            ) as error:  # of these hosts there is no such plan: it is no choice of this cluster
                _log.warning("a remembered choice is not used: %s", error)
        return made

    def compile(self, candidate: Candidate, reason: str) -> Any:
        """The plan of a candidate."""
        way = candidate.way
        return self._compile(Choice(way.algorithm, way.chunk_bytes, reason, reducers=way.reducers))

    def takes_turn(self, one: SizeClass) -> bool:
        """Whether this class may try now: one at a time, those that carry most first."""
        if self._trying is not None and _is_over(self._trying, one):
            self._trying = None
        if self._trying is None:
            others = [c for c in self._classes.values() if c.calls >= _USUAL_CALLS and not _is_over(c, one)]
            carried = max((c.calls << c.traffic.magnitude for c in others if not c.settled), default=0)
            if one.calls << one.traffic.magnitude >= carried:
                self._trying = one
        return self._trying is one

    def end_turn(self, one: SizeClass) -> None:
        """Another class may try."""
        if self._trying is one:
            self._trying = None

    def lanes(self) -> int:
        """The most that a TCP link of this rank has."""
        links = self._session.link_statistics()
        lanes = (link.get("lanes", ()) for link in links)
        return max((sum(one["up"] and not one["control"] for one in some) for some in lanes), default=0)

    def set_lanes(self, lanes: int) -> None:
        """Of all links of the job."""
        self._session.set_lanes(lanes)

    def write(
        self, event: str, traffic: Traffic, candidate: Candidate, seconds: float, reason: str = ""
    ) -> None:
        """To the log of the job."""
        self.job.journal.write(event, self._ranks, traffic, candidate, seconds, reason)

    def chosen(
        self, traffic: Traffic, candidate: Candidate, seconds: float, before: float, reason: str
    ) -> None:
        """A class has chosen: the log and the cache get to know, and people."""
        self.write("chosen", traffic, candidate, seconds, reason)
        if self.job.first:
            _log.info("all_reduce %s: %s: %s", traffic, candidate, reason)
        if seconds < float("inf") and before < float("inf"):
            self.job.keep(self._cluster, traffic, candidate, seconds, before)


def _is_over(other: SizeClass, one: SizeClass) -> bool:
    """Whether the program seems not to call ``other`` any more."""
    return one.calls > 4 * other.calls + 16
