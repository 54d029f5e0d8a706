"""Picks an algorithm by what it would cost: latencies, message overheads, bytes, reductions.

A pure function of its arguments, so all ranks of a group agree without talking. The costs are the closed
forms of the alpha-beta model (Thakur, Rabenseifner and Gropp 2005), for pipelined chunks: the slowest
resource counts. ``predict.virtual_time`` plays the plans themselves.

Beside reducers (docs/reducers.md) the choice is also whether they take part: in all large all-reduces, and in small
messages that are measured to be faster through a reducer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from slipstream.base.dtypes import WireType, wire_share
from slipstream.plan.halving_doubling import power_of_two_below
from slipstream.plan.shards import shard_count
from slipstream.plan.topology import Network, Topology, members_of_hosts

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
# Where each peer is sent other bytes, so much shared memory holds two chunks for each of them.
MOVED_STAGED = 4 << 20
MIXED_CHUNK = 128 << 10
TCP_CHUNK = 256 << 10
# Far pairs cross the whole network at once; a ring only ever loads neighbours.
CONGESTION = 1.2
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


class _Shape(NamedTuple):
    """A topology in numbers: ``local`` ranks on the fullest host.

    ``carried``: the shards of a rank of the emptiest host (`slipstream.plan.shards`). ``crossing``: the rounds of
    doubling in which a rank has a partner on another host.
    """

    size: int
    hosts: int
    local: int
    carried: int
    crossing: int
    network: Network

    @property
    def inner(self) -> float:
        """Seconds of latency and overhead of a message within a host."""
        return self.network.intra_alpha + self.network.intra_overhead

    @property
    def outer(self) -> float:
        """Seconds of latency and overhead of a message over the slowest way there is."""
        if self.hosts == 1:
            return self.inner
        return self.network.inter_alpha + self.network.inter_overhead

    def all_pairs(self) -> float:
        """Seconds in which every rank sends one empty message to every other."""
        others = self.size - self.local
        inner = (self.local - 1) * self.network.intra_overhead
        return self.outer - self._overhead() + inner + others * self.network.inter_overhead

    def _overhead(self) -> float:
        return self.network.intra_overhead if self.hosts == 1 else self.network.inter_overhead

    def transfer(self, rank_bytes: float, host_bytes: float, reduced: float = 0.0) -> float:
        """Seconds of moving bytes, per rank within hosts and per host between them, and of reducing."""
        intra = rank_bytes * self.network.intra_beta + reduced * self.network.gamma
        inter = host_bytes * self.network.inter_beta if self.hosts > 1 else 0.0
        return max(intra, inter)


Cost = Callable[[_Shape, float], float]  # (shape, bytes) -> seconds


def _rounds(size: int) -> int:
    return (size - 1).bit_length()


def _doubling_latency(s: _Shape) -> float:
    """One exchange with each partner; folding adds two messages over the slowest way."""
    rounds = _rounds(power_of_two_below(s.size))
    folds = 0 if s.size == power_of_two_below(s.size) else 2
    return (rounds - s.crossing) * s.inner + (s.crossing + folds) * s.outer


def _recursive_doubling(s: _Shape, m: float) -> float:
    # Nothing is pipelined: a round is over when the whole buffer is there.
    power = power_of_two_below(s.size)
    rounds = _rounds(power) + (0 if power == s.size else 2)
    outer = rounds if s.hosts > 1 else 0
    data = rounds * m * (s.network.intra_beta + s.network.gamma) + outer * m * s.local * s.network.inter_beta
    return _doubling_latency(s) + data


def _halving_doubling(s: _Shape, m: float) -> float:
    power = power_of_two_below(s.size)
    moved = 2 * m * (power - 1) / power + (0 if power == s.size else 2 * m)
    crossing = moved if s.local == 1 else 2 * m * s.local
    folds = 0 if power == s.size else 2 * s.outer  # once, not in each direction
    return 2 * _doubling_latency(s) - folds + CONGESTION * s.transfer(moved, crossing, moved / 2)


def _ring(s: _Shape, m: float) -> float:
    moved = 2 * m * (s.size - 1) / s.size
    return 2 * (s.size - 1) * s.outer + s.transfer(moved, moved, moved / 2)


def _direct(s: _Shape, m: float) -> float:
    moved = 2 * m * (s.size - 1) / s.size
    crossing = 2 * m * s.local * (s.size - s.local) / s.size
    congestion = CONGESTION if s.hosts > 1 else 1.0
    return 2 * s.all_pairs() + congestion * s.transfer(moved, crossing, moved / 2)


def _within(s: _Shape) -> float:
    """Latency of what the ranks of a host send each other before, and after."""
    return 2 * (s.inner + (s.local - 1) * s.network.intra_overhead)


def _round_of_shards(s: _Shape) -> float:
    return s.outer + (s.carried - 1) * s.network.inter_overhead


def _hierarchical(s: _Shape, m: float) -> float:
    within, across = 2 * m * (s.local - 1) / s.local, 2 * m * (s.hosts - 1) / s.hosts
    return _within(s) + 2 * (s.hosts - 1) * _round_of_shards(s) + s.transfer(within, across, within / 2)


def _hierarchical_halving(s: _Shape, m: float) -> float:
    within = 2 * m * (s.local - 1) / s.local
    power = power_of_two_below(s.hosts)
    across = 2 * m * (power - 1) / power + (0 if power == s.hosts else 2 * m)
    rounds = 2 * _rounds(power) + (0 if power == s.hosts else 2)
    return _within(s) + rounds * _round_of_shards(s) + CONGESTION * s.transfer(within, across, within / 2)


def _ring_half(s: _Shape, m: float) -> float:
    return _ring(s, m) / 2


def _bruck(s: _Shape, m: float) -> float:
    # Far pairs, and what a rank has received is sent on: each rank of a host moves nearly all of it over the network.
    moved = m * (s.size - 1) / s.size
    return _rounds(s.size) * s.outer + CONGESTION * s.transfer(moved, moved * s.local)


def _direct_half(s: _Shape, m: float) -> float:
    return _direct(s, m) / 2


def _direct_broadcast(s: _Shape, m: float) -> float:
    return s.all_pairs() + s.transfer(m, m * (s.size - s.local))


def _binomial(s: _Shape, m: float) -> float:
    rounds = _rounds(s.size)
    return rounds * s.outer + s.transfer(m * rounds, m * rounds, m * rounds)


def _chain(s: _Shape, m: float) -> float:
    # The last rank starts when the first chunk has passed all others.
    chunk = min(m, TCP_CHUNK)
    hop = s.outer + chunk * (s.network.inter_beta if s.hosts > 1 else s.network.intra_beta)
    return (s.size - 1) * hop + s.transfer(m, m)


def _scatter_gather(s: _Shape, m: float) -> float:
    moved = 2 * m * (s.size - 1) / s.size
    # What the root receives comes one by one.
    return _direct_half(s, m) + s.all_pairs() + s.transfer(moved / 2, moved / 2)


# On one host `direct` stands for all large data: rings and trees are for networks. But to reduce to one rank it was
# measured to be slower than a tree at every size: what is reduced for others goes through scratch memory.
_ONE_HOST: dict[str, dict[str, Cost]] = {
    "all_reduce": {"recursive_doubling": _recursive_doubling, "direct": _direct},
    "reduce_scatter": {"direct": _direct_half},
    "all_gather": {"direct": _direct_half},
    "broadcast": {"direct": _direct_broadcast},
    "reduce": {"binomial": _binomial},
    "gather": {"linear": _direct_half},
    "scatter": {"linear": _direct_half},
    "all_to_all": {"pairwise": _direct_half},
}
_MANY_HOSTS: dict[str, dict[str, Cost]] = _ONE_HOST | {
    "reduce": {"binomial": _binomial, "scatter_gather": _scatter_gather},
    "all_reduce": {
        "recursive_doubling": _recursive_doubling,
        "ring": _ring,
        "halving_doubling": _halving_doubling,
        "hierarchical": _hierarchical,
        "hierarchical_halving": _hierarchical_halving,
    },
    "reduce_scatter": {"direct": _direct_half, "ring": _ring_half},
    "all_gather": {"direct": _direct_half, "ring": _ring_half, "bruck": _bruck},
    "broadcast": {"binomial": _binomial, "chain": _chain},
}
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


def _shape(topology: Topology) -> _Shape:
    sizes = [len(members) for members in members_of_hosts(topology.size, topology.hosts)]
    carried = -(-shard_count(sizes) // min(sizes))
    return _Shape(topology.size, len(sizes), max(sizes), carried, _crossing(topology.hosts), topology.network)


def _crossing(hosts: Sequence[int]) -> int:
    power = power_of_two_below(len(hosts))
    rounds = range(_rounds(power))
    return sum(any(hosts[rank] != hosts[rank ^ (1 << k)] for rank in range(power)) for k in rounds)


def carries(collective: str, algorithm: str) -> bool:
    """Whether data of this collective may travel in a wire type by this algorithm.

    An algorithm of your own must finish each block on one rank before it gives it to others.
    """
    return not (collective == "all_reduce" and algorithm in _FINISHED_BY_ALL)


def estimate(
    collective: str, nbytes: int, topology: Topology, wire: WireType = WireType.EXACT
) -> dict[str, float]:
    """Return the algorithms worth considering and the seconds each is expected to take.

    ``nbytes``: the largest buffer of any rank (the output of an all-gather, the input of a reduce-scatter).
    ``wire``: what the data, float32, travels as between hosts. Raises ValueError for an unknown collective or a
    negative size.
    """
    if collective not in _ONE_HOST:
        raise ValueError(f"no collective is called {collective!r}; there are: {', '.join(_ONE_HOST)}")
    if nbytes < 0:
        raise ValueError(f"{nbytes} bytes")
    network = topology.network
    faster = network._replace(inter_beta=network.inter_beta * wire_share(wire))
    shape = _shape(replace(topology, network=faster))
    costs = (_ONE_HOST if shape.hosts == 1 else _MANY_HOSTS)[collective]
    return {
        name: cost(shape, nbytes)
        for name, cost in costs.items()
        if _is_open(name, collective, shape, topology)
        and (not wire or shape.hosts == 1 or carries(collective, name))
    }


def _is_open(algorithm: str, collective: str, shape: _Shape, topology: Topology) -> bool:
    """Whether an algorithm may be chosen: those by hosts need ranks that share some, and may be forced or forbidden."""
    by_hosts = algorithm.startswith("hierarchical")
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
    shape = _shape(topology)
    by_hosts = _is_open("hierarchical", collective, shape, topology)
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
    return next(iter(_ONE_HOST[collective])), "the way of one host"


def _choose_own(collective: str, nbytes: int, topology: Topology, wire: WireType = WireType.EXACT) -> Choice:
    shape = _shape(topology)
    times = estimate(collective, nbytes, topology, wire)
    where = f"{shape.hosts} hosts of up to {shape.local}"
    if shape.hosts == 1:
        name, reason = _on_one_host(collective, nbytes, topology)
    elif len(times) == 1:
        name, reason = next(iter(times)), f"the way of {where}"
    else:
        name = min(times, key=lambda n: times[n])
        others = ", ".join(f"{n} {t * 1e6:.0f} us" for n, t in times.items() if n != name)
        reason = f"{times[name] * 1e6:.0f} us for {nbytes} bytes on {where} (else {others})"
    if shape.hosts == 1:
        chunk = SHM_CHUNK if collective in _REDUCING else _moved_chunk(collective, nbytes, shape.size)
    else:
        chunk = MIXED_CHUNK if name.startswith("hierarchical") else TCP_CHUNK
    return Choice(name, chunk, reason)
