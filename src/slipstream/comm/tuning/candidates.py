"""What may be tried for the all-reduces of one size class: near what the cost model thinks best. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.base.dtypes import WireType
from slipstream.plan.choose import SPLIT_BYTES, Choice, estimate
from slipstream.plan.costs import chunks_of
from slipstream.plan.topology import Topology

__all__ = ["FEW_LANES", "LEAST_BYTES", "Candidate", "Space", "Traffic", "Way", "is_tuned", "space_of"]

LEAST_BYTES = 64 << 10  # smaller operations are mostly latency
FEW_LANES = 2  # that links begin with
_FACTOR = 3.0  # times the best estimate
_MOST_WAYS = 3  # that are tried beside the one that was chosen


@dataclass(frozen=True)
class Traffic:
    """All-reduces that are tuned together: sizes of ``magnitude`` bits, data that travels as ``wire`` between hosts."""

    magnitude: int
    wire: WireType = WireType.EXACT

    def __str__(self) -> str:
        wire = f" as {self.wire.name.lower()}" if self.wire else ""
        return f"below {1 << self.magnitude} bytes{wire}"


@dataclass(frozen=True)
class Way:
    """An algorithm of the workers, with the chunks that it begins with; or, with ``reducers``, beside reducers."""

    algorithm: str
    chunk_bytes: int
    reducers: bool = False


@dataclass(frozen=True)
class Candidate:
    """One setting. ``lanes``: of each TCP link; 0: as links choose by themselves; None: another class sees to them."""

    way: Way
    lanes: int | None = None

    def __str__(self) -> str:
        way = "reducers and a ring" if self.way.reducers else self.way.algorithm
        lanes = {None: "", 0: ", lanes as links choose", 1: ", 1 lane"}.get(
            self.lanes, f", {self.lanes} lanes"
        )
        return f"{way}, chunks of {self.way.chunk_bytes >> 10} KiB{lanes}"


@dataclass(frozen=True)
class Space:
    """Where a search begins, and what else it may try. ``most_chunk``: larger chunks would change nothing."""

    start: Candidate
    ways: tuple[Way, ...]
    most_chunk: int


def is_tuned(collective: str, magnitude: int, topology: Topology) -> bool:
    """Whether operations of so many bits of size are worth it: large all-reduces between hosts."""
    return collective == "all_reduce" and 1 << magnitude > LEAST_BYTES and len(set(topology.hosts)) > 1


def space_of(choice: Choice, traffic: Traffic, topology: Topology, *, bits: bool, lanes: int | None) -> Space:
    """What may be tried in the place of ``choice`` for ``traffic``.

    ``bits``: also what changes the order of additions. ``lanes``: that a link has now, if also that
    number may be tried.
    """
    nbytes = (1 << traffic.magnitude) >> 1
    start = Way(choice.algorithm, choice.chunk_bytes, choice.reducers)
    ways: list[Way] = []
    if bits:
        times = estimate("all_reduce", nbytes, topology, traffic.wire)
        near = [
            name
            for name in sorted(times, key=lambda n: times[n])
            if times[name] <= _FACTOR * min(times.values())
        ]
        ways = [Way(name, chunks_of(name)[-1]) for name in near]
        ways = [way for way in ways if way != start][:_MOST_WAYS]
    if choice.reducers and nbytes < SPLIT_BYTES:
        ways = []
    most = 2 * nbytes // topology.size
    # Links that have more than they begin with have tried that by themselves: it is what later ones are compared with.
    stand = lanes if lanes is None or lanes > FEW_LANES else 0
    return Space(Candidate(start, stand), tuple(ways), most)
