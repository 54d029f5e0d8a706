"""One rank of the tests of failures under slipstream.mpi4jax.

mpi4jax_failure_rank.py dead | waiting | length | operation | alone
"""

from __future__ import annotations

import os
import signal
import sys

import jax
import jax.numpy as jnp
import pytest

import slipstream
from slipstream import mpi4jax
from slipstream.mpi4jax import MPI

ERRORS = (
    jax.errors.JaxRuntimeError,
    ValueError,
    slipstream.SlipstreamError,
)  # the last where a call finds it
EXPECTED = {
    "dead": "rank 1",
    "waiting": "rank 1",
    "length": "1[01] elements of float32",
    "operation": "reduce|broadcast",
}


def main() -> None:
    how = sys.argv[1]
    rank, n = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    if how == "alone":  # an error that nobody waits for
        jax.jit(lambda x: mpi4jax.recv(x, rank))(jnp.ones(3))
        return

    @jax.jit
    def step(x):  # type: ignore[no-untyped-def]
        x = mpi4jax.allreduce(x, MPI.SUM)
        return mpi4jax.sendrecv(x, x, (rank - 1) % n, (rank + 1) % n)

    x = jnp.ones(20_000)
    step(x).block_until_ready()
    if how in ("dead", "waiting") and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    part = x[: 10 + rank]
    last = {
        "dead": lambda: step(x),
        "waiting": lambda: mpi4jax.recv(x, 1),
        "length": lambda: mpi4jax.sendrecv(part, part, (rank - 1) % n, (rank + 1) % n),
        "operation": lambda: mpi4jax.bcast(x, 0) if rank else mpi4jax.reduce(x, MPI.SUM, 0),
    }[how]
    with pytest.raises(ERRORS, match=EXPECTED[how]):
        jax.block_until_ready(last())
    with pytest.raises(slipstream.SlipstreamError):  # errors stay
        MPI.COMM_WORLD.allgather(rank)


if __name__ == "__main__":
    main()
