"""A program of JAX that knows nothing of slipstream: collectives of all kinds, compared with NumPy.

slipstream run -np 2 -- python tests/faces/jax_rank.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

FLOATS = ("float32", "float64", "bfloat16", "float16")
OTHERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "complex64", "complex128")
SIZES = (1, 7, 1023)


def contribution(rank: int, size: int, dtype: str) -> np.ndarray[Any, Any]:
    """What a rank has: small whole numbers, whose sums every type holds exactly."""
    numbers = np.random.default_rng(rank).integers(0, 4, size)
    return np.asarray(jnp.asarray(numbers).astype(dtype))


def check(name: str, got: jax.Array, wanted: np.ndarray[Any, Any]) -> None:
    """The part of the result that this process has equals ``wanted``."""
    mine = np.asarray(got.addressable_data(0))
    np.testing.assert_array_equal(mine, wanted.reshape(mine.shape).astype(mine.dtype), err_msg=name)


def main() -> None:
    """Runs all of them, and says so at the end."""
    jax.distributed.initialize()
    jax.config.update("jax_enable_x64", True)
    n, me = jax.process_count(), jax.process_index()
    assert len(jax.devices()) == n
    assert len(jax.local_devices()) == 1
    mesh = jax.make_mesh((n,), ("i",))

    def run(function: Callable[[Any], Any], mine: np.ndarray[Any, Any], out: Any) -> jax.Array:
        whole = jax.make_array_from_process_local_data(NamedSharding(mesh, P("i")), mine)
        mapped = jax.shard_map(function, mesh=mesh, in_specs=P("i"), out_specs=out, check_vma=False)
        return jax.jit(mapped)(whole)

    for dtype in (*FLOATS, *OTHERS):
        for size in SIZES:
            every = [contribution(rank, size * n, dtype) for rank in range(n)]
            mine, name = every[me], f"{dtype} {size}"
            total = functools.reduce(np.add, every)
            check(f"psum {name}", run(lambda x: jax.lax.psum(x, "i"), mine, P()), total)
            whole = np.concatenate(every)
            gathered = run(lambda x: jax.lax.all_gather(x, "i", tiled=True), mine, P())
            check(f"all_gather {name}", gathered, whole)
            scattered = run(lambda x: jax.lax.psum_scatter(x, "i", tiled=True), mine, P("i"))
            check(f"psum_scatter {name}", scattered, total[me * size : (me + 1) * size])
            ring = [(rank, (rank + 1) % n) for rank in range(n)]
            passed = run(lambda x, ring=ring: jax.lax.ppermute(x, "i", ring), mine, P("i"))
            check(f"ppermute {name}", passed, every[(me - 1) % n])
            exchanged = run(lambda x: jax.lax.all_to_all(x, "i", 0, 0, tiled=True), mine, P("i"))
            check(f"all_to_all {name}", exchanged, np.concatenate(np.stack(every).reshape(n, n, -1)[:, me]))
            if not dtype.startswith("complex"):
                check(f"pmax {name}", run(lambda x: jax.lax.pmax(x, "i"), mine, P()), np.max(every, axis=0))
                check(f"pmin {name}", run(lambda x: jax.lax.pmin(x, "i"), mine, P()), np.min(every, axis=0))
    other_ways(mesh, n, me)
    multihost_utils.sync_global_devices("end")
    print(f"rank {me} of {n}: all is right", flush=True)


def other_ways(mesh: jax.sharding.Mesh, n: int, me: int) -> None:
    """`jit` over sharded arrays, `pmap`, booleans, a ring that leaves ranks out, two axes, and multihost_utils."""
    mine = np.arange(6.0) + me
    spread = jax.make_array_from_process_local_data(NamedSharding(mesh, P("i")), mine)
    check("jit of a sum", jax.jit(jnp.sum)(spread), np.sum([np.arange(6.0) + rank for rank in range(n)]))
    doubled = jax.jit(lambda x: 2 * x, out_shardings=NamedSharding(mesh, P()))(spread)
    check("jit that gathers", doubled, np.concatenate([2 * (np.arange(6.0) + rank) for rank in range(n)]))
    summed = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(mine[None])
    check("pmap", summed, np.sum([np.arange(6.0) + rank for rank in range(n)], axis=0))
    some = jax.jit(jnp.any)(
        jax.make_array_from_process_local_data(NamedSharding(mesh, P("i")), mine > n + 3.5)
    )
    check("any", some, np.array(True))
    first = jax.shard_map(
        lambda x: jax.lax.ppermute(x, "i", [(0, n - 1)]), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
    check("a single pair", jax.jit(first)(spread), np.arange(6.0) if me == n - 1 else np.zeros(6))
    if n == 4:
        square = jax.make_mesh((2, 2), ("x", "y"))
        placed = jax.make_array_from_process_local_data(NamedSharding(square, P(("x", "y"))), mine)
        for axis, others in (("x", (me, me ^ 2)), ("y", (me, me ^ 1))):
            mapped = jax.shard_map(
                lambda x, axis=axis: jax.lax.psum(x, axis),
                mesh=square,
                in_specs=P(("x", "y")),
                out_specs=P(("x", "y")),
                check_vma=False,
            )
            check(
                f"psum over {axis}",
                jax.jit(mapped)(placed),
                np.sum([np.arange(6.0) + r for r in others], axis=0),
            )
    told = multihost_utils.broadcast_one_to_all(np.full(3, me))
    np.testing.assert_array_equal(told, np.zeros(3))
    everybody = multihost_utils.process_allgather(np.full(2, me))
    np.testing.assert_array_equal(np.asarray(everybody).ravel(), np.repeat(np.arange(n), 2))


if __name__ == "__main__":
    main()
