"""All-reduce of hosts of ranks: reduce within each host, between hosts shard by shard in parallel, and back.

Every rank of a host carries a part of the shards (`slipstream.plan.shards`), so the traffic between hosts is that of
one rank per host, spread over all. Hosts may have different numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.plan import direct, halving_doubling, ring
from slipstream.plan.shards import Shards, shards_of
from slipstream.plan.steps import Draft, Plan, Space

__all__ = ["all_reduce", "within_host"]


def all_reduce(rank: int, size: int, hosts: Sequence[int] | None, inter: str = "ring") -> Plan:
    """Compose direct reduce-scatter, ``inter`` all-reduce ("ring" or "halving_doubling"), direct all-gather."""
    shards = shards_of(size, hosts)
    host, index = shards.place(rank)
    members = shards.hosts[host]
    halving = inter == "halving_doubling"
    if not halving and inter != "ring":
        raise ValueError(f"no algorithm between hosts is called {inter!r}")
    several = len(shards.hosts)
    width = halving_doubling.power_of_two_below(several) if halving else several
    name = "hierarchical_halving" if halving else "hierarchical"
    draft = Draft("all_reduce", name, rank, size, width * shards.count)
    carried = [shards.carried(host, member) for member in range(len(members))]
    parts = [(width * mine.start, width * len(mine)) for mine in carried]

    source, ready = Space.IN, ()  # type: tuple[Space, tuple[int, ...]]
    if len(members) > 1:
        ready = (direct.reduce_pass(draft, members, parts, Space.OUT),)
        source = Space.OUT
    if several == 1:
        block, count = parts[index]
        done = [draft.finish(block, Space.OUT, count=count, after=ready)]
    else:
        done = []
        for shard in carried[index]:
            across, base = shards.carriers(shard), width * shard
            between = halving_doubling.all_reduce_pass if halving else _ring_all_reduce
            done += between(draft, across, base, source, ready)
    if len(members) > 1:
        direct.all_gather_pass(draft, members, parts, Space.OUT, done)
    return draft.plan()


def within_host(shards: Shards, rank: int) -> tuple[Plan, Plan]:
    """The first and the last part of the all-reduce alone, among the ranks of the host of ``rank``, two at least.

    By the first, each has the host's sums of the shards that it carries, by the last all have all shards. The blocks
    are the shards. The last begins with what is in OUT.
    """
    host, index = shards.place(rank)
    size = len(shards.hosts[host])
    carried = [shards.carried(host, member) for member in range(size)]
    parts = [(mine.start, len(mine)) for mine in carried]
    first, last = (Draft("all_reduce", "within_host", index, size, shards.count) for _ in range(2))
    direct.reduce_pass(first, range(size), parts, Space.OUT)
    direct.all_gather_pass(last, range(size), parts, Space.OUT)
    return first.plan(), last.plan()


def _ring_all_reduce(
    draft: Draft, across: Sequence[int], base: int, source: Space, ready: tuple[int, ...]
) -> list[int]:
    blocks = range(base, base + len(across))
    reduced = ring.reduce_pass(draft, across, blocks, source, Space.OUT, Space.OUT, ready)
    finished = draft.finish(base + across.index(draft.rank), Space.OUT, after=(reduced,))
    return [finished, *ring.all_gather_pass(draft, across, blocks, Space.OUT, (finished,))]
