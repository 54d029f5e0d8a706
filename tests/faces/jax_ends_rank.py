"""A program of JAX whose processes end in several ways, in a job that goes on without ranks that it loses.

slipstream run -np 3 --min-np 1 -- python tests/faces/jax_ends_rank.py KIND

KIND: killed, shrinks, together, shuts_down, early, raises_first or raises_last.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import slipstream

WORK_SECONDS = 2.0


def total() -> float:
    """The sum over all processes of what each has, which is 1."""
    mesh = Mesh(np.array(jax.devices()), ("i",))
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    ones = jax.make_array_from_process_local_data(NamedSharding(mesh, P("i")), np.ones(1, np.float32))
    return float(np.asarray(jax.jit(mapped)(ones).addressable_data(0))[0])


def work() -> None:
    """Keeps this process busy while others end."""
    until = time.monotonic() + WORK_SECONDS
    while time.monotonic() < until:
        float(np.ones(1000).sum())


def survive(*, shrinks: bool) -> None:
    """Process 1 dies. Process 0 ends by the error that it gets; process 2 catches its own, and saves its work.

    ``shrinks``: both catch it, and go on in a smaller job before.
    """
    me = jax.process_index()
    try:  # the first sum may fail, too: process 1 may have its own before the others have theirs
        assert total() == 3
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if shrinks:
            group = slipstream.world().shrink()
            assert slipstream.all_reduce(np.ones(1), group=group) == 2
        elif me == 0:
            raise
        if me == 2:
            work()
            print(f"{told(error)}; saved", flush=True)


def told(error: Exception) -> str:
    """The error of slipstream."""
    found = re.search(r"PeerLost: .*", str(error))
    assert found is not None, error
    return found[0]


def raise_at(one: int) -> None:
    """That process ends by an exception while the others wait for it."""
    me = jax.process_index()
    try:  # the first sum may fail, too: the process that raises may have its own before the others have theirs
        assert total() == 3
        if me != one:
            total()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if me == one:
            raise
        print(told(error), flush=True)
    if me == one:
        raise ValueError("its data is bad")


def main() -> None:
    """Ends as the command line says."""
    jax.distributed.initialize()
    kind = sys.argv[1]
    if kind in ("killed", "shrinks"):
        survive(shrinks=kind == "shrinks")
    elif kind.startswith("raises"):
        raise_at({"raises_first": 0, "raises_last": 2}[kind])
    else:
        if kind != "early":  # which needs none of JAX's devices
            assert total() == 3
        if os.environ["SLIPSTREAM_RANK"] != "0":
            work()
        if kind == "shuts_down":
            jax.distributed.shutdown()
        print("all is right", flush=True)


if __name__ == "__main__":
    main()
