"""All-reduce of hosts of ranks: reduce within each host, between hosts shard by shard in parallel, and back.

Every rank of a host owns one shard, so the traffic between hosts is that of one rank per host, spread over
all. The k-th rank of a host, in rank order, meets the k-th ranks of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.plan import direct, halving_doubling, ring
from slipstream.plan.steps import Draft, Plan, Space
from slipstream.plan.topology import members_of_hosts

__all__ = ["all_reduce"]


def all_reduce(rank: int, size: int, hosts: Sequence[int] | None, inter: str = "ring") -> Plan:
    """Compose direct reduce-scatter, ``inter`` all-reduce ("ring" or "halving_doubling"), direct all-gather.

    Raises ValueError unless every host has the same number of ranks.
    """
    by_host = members_of_hosts(size, hosts)
    local_size = len(by_host[0])
    if any(len(members) != local_size for members in by_host):
        sizes = [len(members) for members in by_host]
        raise ValueError(f"hierarchical all-reduce needs as many ranks on every host, not {sizes}")
    members = next(m for m in by_host if rank in m)
    index = members.index(rank)
    across = [m[index] for m in by_host]
    halving = inter == "halving_doubling"
    if not halving and inter != "ring":
        raise ValueError(f"no algorithm between hosts is called {inter!r}")
    width = halving_doubling.power_of_two_below(len(across)) if halving else len(across)
    name = "hierarchical_halving" if halving else "hierarchical"
    draft = Draft("all_reduce", name, rank, size, width * local_size)
    shards = [(i * width, width) for i in range(local_size)]

    source, ready = Space.IN, ()  # type: tuple[Space, tuple[int, ...]]
    if local_size > 1:
        ready = (direct.reduce_pass(draft, members, shards, Space.OUT),)
        source = Space.OUT
    base = index * width
    if len(across) == 1:
        done = [draft.finish(base, Space.OUT, count=width, after=ready)]
    elif halving:
        done = halving_doubling.all_reduce_pass(draft, across, base, source, ready)
    else:
        done = _ring_all_reduce(draft, across, base, source, ready)
    if local_size > 1:
        direct.all_gather_pass(draft, members, shards, Space.OUT, done)
    return draft.plan()


def _ring_all_reduce(
    draft: Draft, across: Sequence[int], base: int, source: Space, ready: tuple[int, ...]
) -> list[int]:
    blocks = range(base, base + len(across))
    reduced = ring.reduce_pass(draft, across, blocks, source, Space.OUT, Space.OUT, ready)
    finished = draft.finish(base + across.index(draft.rank), Space.OUT, after=(reduced,))
    return [finished, *ring.all_gather_pass(draft, across, blocks, Space.OUT, (finished,))]
