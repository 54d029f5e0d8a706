"""A program of JAX that sums 4 MiB over all its processes, some times: prints the share that went to reducers."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import slipstream

COUNT, TIMES = 1 << 20, 4


def main() -> None:
    """All of it; an error if a value is wrong."""
    jax.distributed.initialize()
    n, me = jax.process_count(), jax.process_index()
    here = len(jax.local_devices())
    mesh = jax.make_mesh((n * here,), ("i",))
    total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P()))
    sent = []
    for count in (3, *[COUNT] * TIMES):
        mine = np.tile(np.arange(count, dtype=np.float32) % 1000 + me, here)
        placed = jax.make_array_from_process_local_data(NamedSharding(mesh, P("i")), mine)
        expected = here * (n * (np.arange(count) % 1000) + n * (n - 1) / 2)
        assert (np.asarray(total(placed).addressable_data(0)) == expected).all()
        sent.append(sum(one["sent"] for one in slipstream.world().job.reducers.states()))
    print(f"share: {(sent[-1] - sent[0]) / (TIMES * COUNT * 4)}")


if __name__ == "__main__":
    main()
