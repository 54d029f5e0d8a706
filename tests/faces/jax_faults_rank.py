"""A program of JAX in which something goes wrong; each process prints what it is told.

slipstream run -np 2 -- python tests/faces/jax_faults_rank.py killed|raises|mismatch|early|loops|late FILE
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import slipstream


def psum(devices: list[jax.Device], size: int) -> None:
    """The sum over ``devices`` of arrays of ``size``; prints the error, if there is one."""
    mesh = Mesh(np.array(devices), ("i",))
    mine = np.ones((len(jax.local_devices()) * size,), np.float32)
    spread = jax.make_array_from_process_local_data(NamedSharding(mesh, P("i")), mine)
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    try:
        jax.jit(mapped)(spread).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        print(f"told: {error}".replace("\n", " "), flush=True)


def late() -> None:
    """Process 1 begins when a thread of process 0 has seen that process 0 waits for it, and says so in a file."""
    slipstream.init()
    session, file = slipstream.world().session, Path(sys.argv[2])

    def watch() -> None:
        while "\n  waits: " not in session.report():
            time.sleep(0.01)  # a poll of what the other thread does
        file.touch()

    if slipstream.rank() == 0:
        threading.Thread(target=watch, daemon=True).start()
    else:
        while not file.exists():
            time.sleep(0.01)  # a poll for a file of another process
    print(f"told: {len(jax.devices())}", flush=True)


def main() -> None:
    """Goes wrong as the command line says."""
    jax.distributed.initialize(shutdown_timeout_seconds=60)
    if sys.argv[1] == "late":
        late()
        return
    me, kind = jax.process_index(), sys.argv[1]
    everywhere = jax.devices()
    if kind == "killed":
        psum(everywhere, 3)
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        psum(everywhere, 3)
    elif kind == "raises":
        psum(everywhere, 3)
        if me == 1:
            raise ValueError("the data of rank 1 is bad")
        psum(everywhere, 3)
    elif kind == "early":
        psum(everywhere, 3)
        if me == 0:
            psum(everywhere, 3)
    elif kind == "mismatch":
        psum(everywhere, 5 + 2 * me)
    elif kind == "loops":  # each half of the processes calls as many collectives as it needs
        mesh = Mesh(np.array(everywhere).reshape(2, 2), ("i", "j"))

        def halved(x: jax.Array) -> jax.Array:
            count = 3 + 4 * jax.lax.axis_index("i")
            mine = jax.lax.fori_loop(0, count, lambda _, v: jax.lax.psum(v, "j") / 2, x)
            return jax.lax.psum(mine, ("i", "j"))

        place = NamedSharding(mesh, P("i", "j"))
        ones = jax.make_array_from_callback((2, 2), place, lambda index: np.ones((2, 2), np.float32)[index])
        mapped = jax.shard_map(
            halved, mesh=mesh, in_specs=P("i", "j"), out_specs=P("i", "j"), check_vma=False
        )
        print(f"told: {jax.jit(mapped)(ones).addressable_data(0)[0, 0]}", flush=True)
    if kind in ("killed", "raises"):
        os._exit(0)  # JAX would wait for the one that is gone
    # Else JAX has them end together: process 0 serves the others, which end at once when it does not.


if __name__ == "__main__":
    main()
