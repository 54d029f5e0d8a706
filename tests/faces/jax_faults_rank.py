"""A program of JAX in which something goes wrong; each process prints what it is told.

slipstream run -np 2 -- python tests/faces/jax_faults_rank.py killed|raises|mismatch|subset|devices|meshes|alike|loops
"""

from __future__ import annotations

import os
import signal
import sys

import jax
import numpy as np
from jax._src import distributed
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LIMIT_MS = 120_000


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


def sums(devices: list[jax.Device]) -> bool:
    """Sums in both halves of ``devices``, and over all of them. Prints the error and gives False if there is one."""
    mesh = Mesh(np.array(devices).reshape(2, 2), ("i", "j"))
    whole = 10.0 ** np.arange(4, dtype=np.float32).reshape(2, 2)
    place = NamedSharding(mesh, P("i", "j"))
    x = jax.make_array_from_callback((2, 2), place, lambda index: whole[index])
    mine = devices.index(jax.local_devices()[0])
    for axes, right in (("j", whole.sum(1)[mine // 2]), (("i", "j"), whole.sum())):
        try:
            mapped = jax.shard_map(
                lambda x, axes=axes: jax.lax.psum(x, axes),
                mesh=mesh,
                in_specs=P("i", "j"),
                out_specs=P("i", "j"),
            )
            found = jax.jit(mapped)(x).addressable_data(0)[0, 0]
        except jax.errors.JaxRuntimeError as error:
            print("told:", str(error).splitlines()[0])
            return False
        if found != right:
            print(f"told: {found} in place of {right}")
            return False
    return True


def main() -> None:
    """Goes wrong as the command line says."""
    jax.distributed.initialize(shutdown_timeout_seconds=5)
    me, kind = jax.process_index(), sys.argv[1]
    everywhere = jax.devices()
    told = distributed.global_state.client
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
    elif kind == "mismatch":
        psum(everywhere, 5 + 2 * me)
    elif kind == "subset":
        if me < 2:
            psum(everywhere[:2], 4)
            told.key_value_set(f"told {me}", "yes")
        else:  # it lives, and has nothing to do with it
            for one in range(2):
                told.blocking_key_value_get(f"told {one}", LIMIT_MS)
    elif kind == "meshes":  # the second has one of the first's groups again, so only two processes come
        for order in ([0, 1, 2, 3], [0, 1, 3, 2], [0, 2, 1, 3]):
            mesh = Mesh(np.array(everywhere)[order].reshape(2, 2), ("i", "j"))
            place = NamedSharding(mesh, P("i", "j"))
            whole = np.arange(4.0, dtype=np.float32).reshape(2, 2)
            x = jax.make_array_from_callback((2, 2), place, lambda index: whole[index])  # noqa: B023
            try:
                y = jax.device_put(x, NamedSharding(mesh, P("i")))
                right = np.array_equal(y.addressable_data(0), whole[[order.index(me) // 2]])
            except jax.errors.JaxRuntimeError as error:
                print("told:", str(error).splitlines()[0])
                break
            assert right, order
    elif kind == "alike":  # the second has a group of the first, and in the third sum all are of one group
        for order in ([1, 0, 2, 3], [0, 1, 2, 3]):
            if not sums([everywhere[i] for i in order]):
                break
        else:
            print("told: all is right")
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
        print(f"told: {jax.jit(mapped)(ones).addressable_data(0)[0, 0]}")
    elif kind == "devices":
        assert len(jax.local_devices()) == 2
        psum(everywhere, 4)
    sys.stdout.flush()
    os._exit(0)  # JAX would wait for those who are gone


if __name__ == "__main__":
    main()
