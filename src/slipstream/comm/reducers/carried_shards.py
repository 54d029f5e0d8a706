"""The shards that a rank carries between hosts, as the native core knows them."""

from __future__ import annotations

from slipstream import _core
from slipstream.comm.measuring.runs import compiled
from slipstream.plan.hierarchical import within_host
from slipstream.plan.reducers import worker
from slipstream.plan.registry import build
from slipstream.plan.shards import Shards

__all__ = ["native_shards"]


def native_shards(shards: Shards, rank: int) -> _core.Shards:
    """Who carries which of ``shards``, and the plans of ``rank`` for those that it carries itself."""
    host, _ = shards.place(rank)
    several, neighbours = len(shards.hosts), shards.hosts[host]
    reduce, gather = map(compiled, within_host(shards, rank)) if len(neighbours) > 1 else (None, None)
    return _core.Shards(
        carriers=[shards.carriers(shard) for shard in range(shards.count)],
        neighbours=neighbours,
        star=compiled(worker(host, several)),
        between=compiled(build("all_reduce", "ring", host, several)),
        reduce=reduce,
        gather=gather,
    )
