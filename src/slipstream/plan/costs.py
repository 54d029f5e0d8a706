"""What algorithms cost: closed forms of the alpha-beta model (Thakur, Rabenseifner and Gropp 2005), for many chunks.

The slowest resource counts. A chain, in which a rank waits until a chunk has passed all before it, wants small chunks;
for all else more messages only cost. ``predict.virtual_time`` plays the plans themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slipstream.plan.direct import QUEUED_BYTES
from slipstream.plan.double_tree import depth
from slipstream.plan.halving_doubling import power_of_two_below
from slipstream.plan.shards import shard_count
from slipstream.plan.topology import Network, Topology, members_of_hosts

__all__ = [
    "MANY_HOSTS",
    "MIXED_CHUNK",
    "ONE_HOST",
    "QUEUED_BYTES",
    "TCP_CHUNK",
    "Cost",
    "Shape",
    "chunks_of",
    "shape_of",
]

MIXED_CHUNK = 128 << 10
TCP_CHUNK = 256 << 10
_CHAIN_CHUNKS = (16 << 10, 32 << 10, 64 << 10, 128 << 10, TCP_CHUNK)
# Far pairs cross the whole network at once; a ring only ever loads neighbours. Short messages fit into its queues.
CONGESTION = 1.2
# Partners that halve send each other half of the data in one burst. In labs of 8 and 16 hosts 512 KiB took 1.3 and 1.6
# times as long as its bytes, 1 MiB 1.6 and 1.9; a ring 1.02 to 1.07.
_BURSTS = 1.5
# Where all ranks send to a port at once: more than so many bytes take so many times as long. In labs of 16 hosts 256
# and 512 KiB took 1.2 and 1.35 times as long, 1 MiB 5.5; of 8 hosts 1 MiB 1.2, 4 MiB 2.9. So 3 is between these.
_INCAST = ((512 << 10, 3.0), (192 << 10, 1.3))
# At a port of a double tree two senders meet at times. In labs of 8 and 16 hosts 1 MiB took 0.75 to 1 of a chain's.
# (`predict.virtual_time` finds twice the bytes, as a message that waits for one port keeps another one there.)
_TURNS = CONGESTION


class Shape(NamedTuple):
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


def _congestion(s: Shape, m: float) -> float:
    """How many times as long bytes take if ranks far from each other send at once: parts of ``m`` for each rank."""
    return CONGESTION if s.hosts > 1 and m / s.size > QUEUED_BYTES else 1.0


def _bursts(s: Shape, m: float) -> float:
    """How many times as long bytes take if each rank exchanges half of ``m`` bytes with a partner, then a quarter."""
    return _BURSTS if s.hosts > 1 and m / 2 > QUEUED_BYTES else 1.0


def _incast(s: Shape, m: float) -> float:
    """How many times as long bytes take if all ranks send each other their parts of ``m`` bytes at once."""
    at_port = m * (s.size - s.local) / s.size
    return next((times for least, times in _INCAST if s.hosts > 1 and at_port > least), 1.0)


Cost = Callable[[Shape, float, int], float]  # (shape, bytes, bytes of a chunk) -> seconds


def _rounds(size: int) -> int:
    return (size - 1).bit_length()


def _doubling_latency(s: Shape) -> float:
    """One exchange with each partner; folding adds two messages over the slowest way."""
    rounds = _rounds(power_of_two_below(s.size))
    folds = 0 if s.size == power_of_two_below(s.size) else 2
    return (rounds - s.crossing) * s.inner + (s.crossing + folds) * s.outer


def _recursive_doubling(s: Shape, m: float, chunk: int) -> float:
    # Nothing is pipelined: a round is over when the whole buffer is there.
    power = power_of_two_below(s.size)
    rounds = _rounds(power) + (0 if power == s.size else 2)
    outer = rounds if s.hosts > 1 else 0
    data = rounds * m * (s.network.intra_beta + s.network.gamma) + outer * m * s.local * s.network.inter_beta
    return _doubling_latency(s) + data


def _halving_doubling(s: Shape, m: float, chunk: int) -> float:
    power = power_of_two_below(s.size)
    moved = 2 * m * (power - 1) / power + (0 if power == s.size else 2 * m)
    crossing = moved if s.local == 1 else 2 * m * s.local
    folds = 0 if power == s.size else 2 * s.outer  # once, not in each direction
    return 2 * _doubling_latency(s) - folds + _bursts(s, m) * s.transfer(moved, crossing, moved / 2)


def _ring(s: Shape, m: float, chunk: int) -> float:
    moved = 2 * m * (s.size - 1) / s.size
    return 2 * (s.size - 1) * s.outer + s.transfer(moved, moved, moved / 2)


def _all_to_all_twice(s: Shape, m: float, times: float) -> float:
    moved = 2 * m * (s.size - 1) / s.size
    crossing = 2 * m * s.local * (s.size - s.local) / s.size
    return 2 * s.all_pairs() + times * s.transfer(moved, crossing, moved / 2)


def _direct(s: Shape, m: float, chunk: int) -> float:
    return _all_to_all_twice(s, m, _congestion(s, m))


def _direct_reduce(s: Shape, m: float, chunk: int) -> float:
    return _all_to_all_twice(s, m, _incast(s, m))


def _within(s: Shape) -> float:
    """Latency of what the ranks of a host send each other before, and after."""
    return 2 * (s.inner + (s.local - 1) * s.network.intra_overhead)


def _round_of_shards(s: Shape) -> float:
    return s.outer + (s.carried - 1) * s.network.inter_overhead


def _hierarchical(s: Shape, m: float, chunk: int) -> float:
    within, across = 2 * m * (s.local - 1) / s.local, 2 * m * (s.hosts - 1) / s.hosts
    return _within(s) + 2 * (s.hosts - 1) * _round_of_shards(s) + s.transfer(within, across, within / 2)


def _hierarchical_halving(s: Shape, m: float, chunk: int) -> float:
    within = 2 * m * (s.local - 1) / s.local
    power = power_of_two_below(s.hosts)
    across = 2 * m * (power - 1) / power + (0 if power == s.hosts else 2 * m)
    rounds = 2 * _rounds(power) + (0 if power == s.hosts else 2)
    return _within(s) + rounds * _round_of_shards(s) + _bursts(s, m) * s.transfer(within, across, within / 2)


def _ring_half(s: Shape, m: float, chunk: int) -> float:
    return _ring(s, m, chunk) / 2


def _bruck(s: Shape, m: float, chunk: int) -> float:
    # Far pairs, and what a rank has received is sent on: each rank of a host moves nearly all of it over the network.
    moved = m * (s.size - 1) / s.size
    return _rounds(s.size) * s.outer + _congestion(s, m) * s.transfer(moved, moved * s.local)


def _direct_half(s: Shape, m: float, chunk: int) -> float:
    return _direct(s, m, chunk) / 2


def _in_rounds(s: Shape, m: float, chunk: int) -> float:
    # Beyond what queues hold, a rank waits for all but two of the others once before its last chunks.
    waits = max(0, s.size - 3) * s.outer if m / s.size > QUEUED_BYTES else 0.0
    moved = m * (s.size - 1) / s.size
    return s.all_pairs() + waits + s.transfer(moved, moved)


def _direct_broadcast(s: Shape, m: float, chunk: int) -> float:
    return s.all_pairs() + s.transfer(m, m * (s.size - s.local))


def _rooted(s: Shape, m: float, alone: float, moved: float, messages: float) -> float:
    """What counts of a chain or tree, in which most ranks go on before the last one is done, so that calls overlap.

    The geometric mean of the time that it takes ``alone``, and of that for which it keeps the busiest port: ``moved``
    bytes in so many messages. So an algorithm that is twice as slow in one of the two makes up for that if it is more
    than twice as fast in the other. Of what is so short that no port is ever busy, only the former counts.
    """
    overhead = s.network.intra_overhead if s.hosts == 1 else s.network.inter_overhead
    if s.transfer(m, m) < overhead:
        return alone
    return math.sqrt(alone * (s.transfer(moved, moved) + messages * overhead))


def _binomial(s: Shape, m: float, chunk: int) -> float:
    rounds = _rounds(s.size)
    crossing = min(rounds, s.crossing + rounds - _rounds(power_of_two_below(s.size))) if s.hosts > 1 else 0
    latency = (rounds - crossing) * s.inner + crossing * s.outer
    alone = latency + s.transfer(m * rounds, m * crossing, m * rounds)
    return _rooted(s, m, alone, m * crossing, rounds)


def _chain(s: Shape, m: float, chunk: int) -> float:
    # The last rank starts when the first chunk has passed all others.
    n, part = s.network, min(m, float(chunk))
    messages = m / part if part else 1.0
    across = (s.hosts - 1) * (s.outer + part * n.inter_beta)
    within = (s.size - s.hosts) * (s.inner + part * n.intra_beta)
    overhead = n.inter_overhead if s.hosts > 1 else n.intra_overhead
    alone = across + within + s.transfer(m - part, m - part) + (messages - 1) * overhead
    return _rooted(s, m, alone, m, messages)


def _chain_reduce(s: Shape, m: float, chunk: int) -> float:
    return _chain(s, m, chunk) + (s.size - 1) * min(m, chunk) * s.network.gamma / 2


def _double_tree(s: Shape, m: float, chunk: int) -> float:
    # Each rank of a tree sends a chunk twice before the next one. Then the two trees take turns at each port.
    n, part = s.network, min(m / 2, float(chunk))
    messages = m / part if part else 2.0
    across = depth(s.hosts) * (s.outer + 2 * part * n.inter_beta)
    within = (s.local - 1) * (s.inner + part * n.intra_beta)
    alone = (
        across + within + _TURNS * s.transfer(m - 2 * part, m - 2 * part) + (messages - 2) * n.inter_overhead
    )
    return _rooted(s, m, alone, _TURNS * m, messages)


def _double_tree_reduce(s: Shape, m: float, chunk: int) -> float:
    return _double_tree(s, m, chunk) + depth(s.hosts) * min(m, 2 * chunk) * s.network.gamma / 2


def _halving_gather(s: Shape, m: float, chunk: int) -> float:
    power = power_of_two_below(s.size)
    folded = 0.0 if power == s.size else m
    moved = 2 * m * (power - 1) / power + folded
    crossing = moved if s.local == 1 else 2 * m * s.local
    folds = s.outer if folded else 0.0  # only on the way to the root
    bytes_alone = _bursts(s, m) * s.transfer(moved, crossing, moved / 2)
    # Ranks wait for each other when they halve, so that calls do not overlap.
    return 2 * _doubling_latency(s) - 3 * folds + bytes_alone


def _scatter_gather(s: Shape, m: float, chunk: int) -> float:
    moved = 2 * m * (s.size - 1) / s.size
    # What the root receives comes one by one. All wait for all before, so that calls do not overlap.
    return _direct_half(s, m, chunk) + s.all_pairs() + s.transfer(moved / 2, moved / 2)


# On one host `direct` stands for all large data: rings and trees are for networks. But to reduce to one rank it was
# measured to be slower than a tree at every size: what is reduced for others goes through scratch memory.
ONE_HOST: dict[str, dict[str, Cost]] = {
    "all_reduce": {"recursive_doubling": _recursive_doubling, "direct": _direct},
    "reduce_scatter": {"direct": _direct_half},
    "all_gather": {"direct": _direct_half},
    "broadcast": {"direct": _direct_broadcast},
    "reduce": {"binomial": _binomial},
    "gather": {"linear": _direct_half},
    "scatter": {"linear": _direct_half},
    "all_to_all": {"pairwise": _direct_half},
}
MANY_HOSTS: dict[str, dict[str, Cost]] = ONE_HOST | {
    "reduce": {
        "binomial": _binomial,
        "scatter_gather": _scatter_gather,
        "halving_gather": _halving_gather,
        "chain": _chain_reduce,
        "double_tree": _double_tree_reduce,
    },
    "all_reduce": {
        "recursive_doubling": _recursive_doubling,
        "direct": _direct_reduce,
        "ring": _ring,
        "halving_doubling": _halving_doubling,
        "hierarchical": _hierarchical,
        "hierarchical_halving": _hierarchical_halving,
    },
    "reduce_scatter": {"direct": _direct_half, "ring": _ring_half},
    "all_gather": {"direct": _direct_half, "ring": _ring_half, "bruck": _bruck},
    "broadcast": {"binomial": _binomial, "chain": _chain, "double_tree": _double_tree},
    "all_to_all": {"rounds": _in_rounds, "pairwise": _direct_half},
}


def shape_of(topology: Topology) -> Shape:
    """A topology in numbers."""
    sizes = [len(members) for members in members_of_hosts(topology.size, topology.hosts)]
    carried = -(-shard_count(sizes) // min(sizes))
    return Shape(topology.size, len(sizes), max(sizes), carried, _crossing(topology.hosts), topology.network)


def _crossing(hosts: Sequence[int]) -> int:
    power = power_of_two_below(len(hosts))
    rounds = range(_rounds(power))
    return sum(any(hosts[rank] != hosts[rank ^ (1 << k)] for rank in range(power)) for k in rounds)


def chunks_of(algorithm: str) -> tuple[int, ...]:
    """The sizes of chunks that an algorithm between hosts may have, in bytes."""
    if algorithm in ("chain", "double_tree"):
        return _CHAIN_CHUNKS
    if algorithm == "rounds":
        return (QUEUED_BYTES,)
    return (MIXED_CHUNK,) if algorithm.startswith("hierarchical") else (TCP_CHUNK,)
