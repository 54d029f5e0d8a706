"""Who carries which part of a buffer between hosts that have several ranks each, as many on each or not.

The buffer is cut into shards. On every host one rank carries each shard: it has the sum of its host, and meets those
that carry the same shard on the other hosts. So each rank carries a part of the traffic, and a host sends no more
than one rank would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.plan.topology import members_of_hosts

__all__ = ["Shards", "shard_count", "shards_of"]

_MOST_PER_RANK = 4  # shards for each rank of the fullest host: more would be many small messages


@dataclass(frozen=True)
class Shards:
    """``count`` shards, in the order of the buffer; ``hosts``: the ranks of each host."""

    hosts: tuple[tuple[int, ...], ...]
    count: int

    def carried(self, host: int, index: int) -> range:
        """The shards of the ``index``-th rank of a host; there is one at least, and they lie side by side."""
        ranks = len(self.hosts[host])
        return range(self.count * index // ranks, self.count * (index + 1) // ranks)

    def carriers(self, shard: int) -> tuple[int, ...]:
        """The rank of each host that carries the shard."""
        return tuple(ranks[((shard + 1) * len(ranks) - 1) // self.count] for ranks in self.hosts)

    def place(self, rank: int) -> tuple[int, int]:
        """The number of a rank's host, and of the rank on it."""
        host = next(host for host, ranks in enumerate(self.hosts) if rank in ranks)
        return host, self.hosts[host].index(rank)

    def of(self, rank: int) -> range:
        """The shards that a rank carries."""
        return self.carried(*self.place(rank))


def shard_count(local_sizes: Sequence[int]) -> int:
    """How many shards make the work of the ranks of each host most even, the fewest of equals.

    As many as the fullest host has ranks, if the others have as many, or divide it: 6 for hosts of 3, 2 and 1 ranks.
    """
    sizes = set(local_sizes)
    most = max(sizes)

    def unevenness(count: int) -> float:  # one division, so equal ones are equal numbers
        return max(-(-count // size) * size for size in sizes) / count

    return min(range(most, _MOST_PER_RANK * most + 1), key=unevenness)


def shards_of(size: int, hosts: Sequence[int] | None) -> Shards:
    """The shards of a group; ``hosts[r]`` numbers the host of rank r, None if all share one.

    >>> shards_of(3, [0, 0, 1])
    Shards(hosts=((0, 1), (2,)), count=2)
    """
    members = tuple(tuple(ranks) for ranks in members_of_hosts(size, hosts))
    return Shards(members, shard_count([len(ranks) for ranks in members]))
