"""A program of JAX with two CPU devices in each of two processes, in which something goes wrong.

slipstream run -np 2 -e JAX_NUM_CPU_DEVICES=2 -- python tests/faces/jax_devices_faults_rank.py KIND

Each process prints what it is told, and how long it has waited for that.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from slipstream.faces.mpi_trampoline import ahead, groups

Act = Callable[[jax.Array], jax.Array]


def run(act: Act, mesh: Mesh, size: int = 8) -> None:
    """Runs it on a mesh of all devices; prints the error, if there is one."""
    ones = np.ones((mesh.size * size,), np.float32)
    where = P(mesh.axis_names)
    x = jax.make_array_from_callback(ones.shape, NamedSharding(mesh, where), lambda index: ones[index])
    mapped = jax.jit(jax.shard_map(act, mesh=mesh, in_specs=where, out_specs=where, check_vma=False))
    begun = time.monotonic()
    try:
        jax.block_until_ready(mapped(x))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        took = time.monotonic() - begun
        print(f"told: {error}".replace("\n", " "), f"\nafter: {took:.3f}", flush=True)


def on(first: Act, second: Act) -> Act:
    """Does the one on the first device of each process, and the other on its second."""
    return lambda x: jax.lax.cond(jax.lax.axis_index("y") == 0, first, second, x)


def same(x: jax.Array) -> jax.Array:
    """Nothing."""
    return x


def among(axis: str, size: int = 8) -> Act:
    """The sum of the first numbers."""
    return lambda x: x.at[:size].set(jax.lax.psum(x[:size], axis))


def forget(kind: str) -> None:
    """Makes JAX one that slipstream does not know: where computations begin, what they contain, or both."""

    def unknown(*_: object) -> NoReturn:
        raise LookupError("this version of JAX is not known")

    if kind == "unwatched":
        ahead._before_each_computation = unknown
    elif kind == "unread":
        groups.groups_in = unknown
    else:
        ahead.Ahead.make_for = lambda *_: None  # type: ignore[method-assign]


def main() -> None:
    """Goes wrong as the command line says."""
    if sys.argv[1] in ("unwatched", "unread", "unforeseen"):
        forget(sys.argv[1])
    jax.distributed.initialize(shutdown_timeout_seconds=60)
    kind, me = sys.argv[1], jax.process_index()
    line = Mesh(np.array(jax.devices()), ("i",))
    square = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    deaths: dict[str, tuple[Act, Mesh]] = {
        "killed_psum": (lambda x: jax.lax.psum(x, "i"), line),
        "killed_ring": (lambda x: jax.lax.ppermute(x, "i", ring), line),
        "killed_exchange": (lambda x: jax.lax.all_to_all(x, "i", 0, 0, tiled=True), line),
        # The first device waits for the second one, which waits for the process that is killed.
        "killed_far": (lambda x: among("y")(on(same, among("x"))(x)), square),
        "killed_far_pair": (lambda x: jax.lax.ppermute(on(same, among("x"))(x), "y", [(1, 0)]), square),
    }
    wrongs: dict[str, Act] = {
        "lengths": on(among("y", 3), among("y", 5)),
        "operations": on(among("y"), lambda x: jax.lax.pmax(x, "y")),
        "message": on(
            lambda x: x.at[:3].set(jax.lax.ppermute(x[:3], "y", [(0, 1)])),
            lambda x: x.at[:5].set(jax.lax.ppermute(x[:5], "y", [(0, 1)])),
        ),
        "absent": on(among("y"), same),
        "unsent": on(same, lambda x: jax.lax.ppermute(x, "y", [(0, 1)])),
    }
    if kind in deaths:
        act, mesh = deaths[kind]
        run(act, mesh)
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        run(act, mesh)
    elif kind == "making":  # it dies when the others make a group with it
        run(among("y"), square)
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        run(lambda x: jax.lax.psum(x, "i"), line)
    elif kind == "sizes":  # the processes differ
        run(lambda x: jax.lax.psum(x, "i"), line, 5 + 2 * me)
    elif kind in wrongs:
        run(wrongs[kind], square)
    else:
        run(lambda x: jax.lax.psum(x, "i"), line)
    if kind == "making" or kind in deaths:
        os._exit(0)  # JAX would wait for the one that is gone
    # Else JAX has them end together: process 0 serves the others, which end at once when it does not.


if __name__ == "__main__":
    main()
