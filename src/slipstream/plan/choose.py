"""Picks an algorithm by what it would cost: latencies, message overheads, bytes, reductions.

A pure function of its arguments, so all ranks of a group agree without talking. ``costs`` has the closed forms.

Beside reducers (docs/reducers.md) the choice is also whether they take part: in all large all-reduces, and in small
messages that are measured to be faster through a reducer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from slipstream.base.dtypes import WireType, wire_share
from slipstream.plan.costs import MANY_HOSTS, ONE_HOST, QUEUED_BYTES, Shape, chunks_of, shape_of
from slipstream.plan.topology import Network, Topology

__all__ = [
    "SMALL_SIZES",
    "Choice",
    "Network",
    "Reducers",
    "SmallCosts",
    "Topology",
    "carries",
    "choose",
    "estimate",
]

SHM_CHUNK = 64 << 10  # a chunk and its partial sums stay in a core's cache
# What is only moved takes fewer messages, and fewer turns if ranks share cores: up to this size, and so many chunks.
MOVED_CHUNK = 512 << 10
MOVED_CHUNKS = 64
# An all_to_all is cut as one of so many bytes: its ranks may hold different amounts, and must cut alike.
EXCHANGED = 16 << 20
# Where each peer is sent other bytes, so much shared memory holds two chunks for each of them.
MOVED_STAGED = 4 << 20
_HOSTS_OF_ROUNDS = 8  # fewer senders seldom fill the queue before a port
_HOSTS_OF_TREES = 8  # over fewer, a chain is as soon full as two trees
_SPLIT_BETWEEN_TREES = 256 << 10  # of fewer bytes chains were faster in labs of 8 and 16 hosts
SPLIT_BYTES = 32 << 10  # all-reduces of so many and more are split between reducers and a ring of the workers
SMALL_SIZES = (64, 16 << 10)  # bytes of what is measured with reducers
REDUCER_CHUNK = 16 << 10  # of an all-reduce that stands in for another collective


class Choice(NamedTuple):
    """An algorithm of ``registry``, the size of chunks in bytes, and why.

    ``reducers``: the job's reducers take part. ``algorithm`` is then that of an all-reduce, which the ranks run where
    no reducer does. It stands in for the collective, if that is another one.
    """

    algorithm: str
    chunk_bytes: int
    reason: str
    reducers: bool = False


class SmallCosts(NamedTuple):
    """Seconds that 64 bytes and 16 KiB take (`SMALL_SIZES`): an all-reduce among the workers, and through a reducer.

    ``others``: other collectives among the workers; an all-reduce through a reducer can stand in for them.
    """

    workers: tuple[float, float]
    reducer: tuple[float, float]
    others: Mapping[str, tuple[float, float]] = MappingProxyType({})

    def seconds(self, nbytes: int, collective: str) -> tuple[float, float] | None:
        """Among the workers, and through a reducer, along straight lines; None if this was not measured."""
        workers = self.workers if collective == "all_reduce" else self.others.get(collective)
        if workers is None:
            return None
        low, high = SMALL_SIZES
        part = (nbytes - low) / (high - low)
        ours, theirs = (a + (b - a) * part for a, b in (workers, self.reducer))
        return ours, theirs

    def reducer_pays(self, nbytes: int, collective: str = "all_reduce") -> bool:
        """Whether the reducer's way is the shorter one for ``nbytes``."""
        seconds = self.seconds(nbytes, collective)
        return seconds is not None and seconds[1] < seconds[0]


class Reducers(NamedTuple):
    """What a group's choices depend on if reducers serve it. ``small``: None as long as it was not measured."""

    small: SmallCosts | None = None


_REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
# With a wire type all ranks end with the same bits if one of them finishes a block, and the others get it from there.
_FINISHED_BY_ALL = frozenset({"recursive_doubling"})
_SENDS_EACH_ITS_OWN = frozenset({"scatter", "all_to_all"})
# On one host up to here a message costs more than its bytes, whatever the machine.
_SMALL_ON_ONE_HOST = 32 << 10
# From so many ranks on, and up to so many bytes for each of them, the fewest messages are the quickest way if the ranks
# share cores: a tree has 2 (n - 1) where recursive doubling has n log2(n), and so many has Bruck where `direct` has
# n (n - 1).
_CROWD = 16
_CROWDED = {"all_reduce": ("tree", 16 << 10), "all_gather": ("bruck", 64 << 10)}


def carries(collective: str, algorithm: str) -> bool:
    """Whether data of this collective may travel in a wire type by this algorithm.

    An algorithm of your own must finish each block on one rank before it gives it to others.
    """
    return not (collective == "all_reduce" and algorithm in _FINISHED_BY_ALL)


def estimate(
    collective: str, nbytes: int, topology: Topology, wire: WireType = WireType.EXACT
) -> dict[str, float]:
    """Return the algorithms worth considering and the seconds each is expected to take, in the chunks that suit it.

    ``nbytes``: the largest buffer of any rank (the output of an all-gather, the input of a reduce-scatter).
    ``wire``: what the data, float32, travels as between hosts. Raises ValueError for an unknown collective or a
    negative size.
    """
    return {name: seconds for name, (seconds, _) in _options(collective, nbytes, topology, wire).items()}


def _options(
    collective: str, nbytes: int, topology: Topology, wire: WireType
) -> dict[str, tuple[float, int]]:
    """As `estimate`; beside the seconds the bytes of a chunk."""
    if collective not in ONE_HOST:
        raise ValueError(f"no collective is called {collective!r}; there are: {', '.join(ONE_HOST)}")
    if nbytes < 0:
        raise ValueError(f"{nbytes} bytes")
    network = topology.network
    faster = network._replace(inter_beta=network.inter_beta * wire_share(wire))
    shape = shape_of(replace(topology, network=faster))
    costs = (ONE_HOST if shape.hosts == 1 else MANY_HOSTS)[collective]
    return {
        name: min((cost(shape, nbytes, chunk), chunk) for chunk in chunks_of(name))
        for name, cost in costs.items()
        if _is_open(name, collective, nbytes, shape, topology)
        and (not wire or shape.hosts == 1 or carries(collective, name))
    }


def _is_open(algorithm: str, collective: str, nbytes: int, shape: Shape, topology: Topology) -> bool:
    """Whether an algorithm may be chosen: those by hosts need ranks that share some, and may be forced or forbidden.

    To all-reduce between hosts, all send to all only short messages, and only where each has a port of its own. What is
    short, or for few hosts, is not split between two trees. Rounds leave a port idle where several ranks share it.
    """
    by_hosts = algorithm.startswith("hierarchical")
    if algorithm == "rounds":
        return shape.local == 1 and shape.hosts >= _HOSTS_OF_ROUNDS
    if algorithm == "double_tree":
        return nbytes >= _SPLIT_BETWEEN_TREES and shape.hosts >= _HOSTS_OF_TREES
    if collective == "all_reduce" and algorithm == "direct" and shape.hosts > 1:
        return shape.local == 1 and nbytes <= QUEUED_BYTES * shape.size
    if collective != "all_reduce" or shape.hosts == 1 or shape.local == 1:
        return not by_hosts
    return topology.hierarchy == "auto" or by_hosts == (topology.hierarchy == "on")


def choose(
    collective: str,
    nbytes: int,
    topology: Topology,
    reducers: Reducers | None = None,
    wire: WireType = WireType.EXACT,
) -> Choice:
    """Return the algorithm of least estimated time, the same on every rank that asks the same.

    ``nbytes`` as for ``estimate``, which see for errors. Of equals the first in the table wins. ``reducers``: None if
    none serve the group. ``wire``: what the data, float32, travels as between hosts.
    """
    own = _choose_own(collective, nbytes, topology, wire)
    if reducers is None:
        return own
    if wire and collective != "all_reduce":
        return own  # what stands in for it would move bytes
    if nbytes < SPLIT_BYTES:
        return own if reducers.small is None else _choose_small(collective, nbytes, own, reducers.small)
    if collective != "all_reduce":
        return own
    reason = f"{nbytes} bytes are split between reducers and a ring, as all from {SPLIT_BYTES} on"
    shape = shape_of(topology)
    by_hosts = _is_open("hierarchical", collective, nbytes, shape, topology)
    return Choice("hierarchical" if by_hosts else "ring", own.chunk_bytes, reason, reducers=True)


def _choose_small(collective: str, nbytes: int, own: Choice, costs: SmallCosts) -> Choice:
    seconds = costs.seconds(nbytes, collective)
    if seconds is None or (nbytes == 0 and collective != "all_reduce"):
        return own
    workers, reducer = (f"{one * 1e6:.0f} us" for one in seconds)
    reason = f"{nbytes} bytes take {reducer} through a reducer, {workers} without, as measured"
    if not costs.reducer_pays(nbytes, collective):
        return own._replace(reason=f"{own.reason}; {reason}")
    if collective != "all_reduce":
        return Choice("recursive_doubling", REDUCER_CHUNK, reason, reducers=True)
    return Choice(own.algorithm, own.chunk_bytes, reason, reducers=True)


def _moved_chunk(collective: str, nbytes: int, size: int) -> int:
    contents = size - 1 if collective in _SENDS_EACH_ITS_OWN else 1
    most = min(MOVED_CHUNK, MOVED_STAGED // (2 * max(contents, 1)))
    if collective == "all_to_all":
        nbytes = EXCHANGED
    chunk = SHM_CHUNK
    while 2 * chunk <= most and 2 * chunk * MOVED_CHUNKS <= nbytes:
        chunk *= 2
    return chunk


def _on_one_host(collective: str, nbytes: int, topology: Topology) -> tuple[str, str]:
    """An algorithm, and why."""
    reason = f"{nbytes} bytes on one host"
    name, most = _CROWDED.get(collective, ("", 0))
    if name and topology.crowded and topology.size >= _CROWD and nbytes <= most * topology.size:
        return name, f"{reason}, {topology.size} ranks on fewer cores"
    if collective == "all_reduce":
        return ("recursive_doubling" if nbytes <= _SMALL_ON_ONE_HOST else "direct"), reason
    return next(iter(ONE_HOST[collective])), "the way of one host"


def _choose_own(collective: str, nbytes: int, topology: Topology, wire: WireType = WireType.EXACT) -> Choice:
    shape = shape_of(topology)
    options = _options(collective, nbytes, topology, wire)
    if shape.hosts == 1:
        name, reason = _on_one_host(collective, nbytes, topology)
        chunk = SHM_CHUNK if collective in _REDUCING else _moved_chunk(collective, nbytes, shape.size)
        return Choice(name, chunk, reason)
    where = f"{shape.hosts} hosts of up to {shape.local}"
    name = min(options, key=lambda n: options[n][0])
    seconds, chunk = options[name]
    if len(options) == 1:
        return Choice(name, chunk, f"the way of {where}")
    others = ", ".join(f"{n} {t * 1e6:.0f} us" for n, (t, _) in options.items() if n != name)
    return Choice(name, chunk, f"{seconds * 1e6:.0f} us for {nbytes} bytes on {where} (else {others})")
