"""A program of JAX that knows nothing of slipstream: prints how many pages of new memory each psum of 16 MiB takes."""

from __future__ import annotations

import resource

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def main() -> None:
    """Prints the median of 20 calls, after some that get memory from the system."""
    jax.distributed.initialize()
    mesh, spread = jax.make_mesh((jax.device_count(),), ("i",)), P("i")
    total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=spread, out_specs=P()))
    mine = np.full(4 << 20, 1.0 + jax.process_index(), np.float32)
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, spread), mine)
    counts = []
    for _ in range(40):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        found = total(x).block_until_ready()
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert float(found.addressable_data(0)[0]) == sum(range(1, jax.process_count() + 1))
    print("pages:", int(np.median(counts[20:])), flush=True)


if __name__ == "__main__":
    main()
