"""One rank of the tests of failures under JAX.

failure_rank.py mismatch | dead | small-dead
"""

from __future__ import annotations

import os
import signal
import sys

import jax
import jax.numpy as jnp

import slipstream
import slipstream.jax as hvd


def main() -> None:
    how = sys.argv[1]
    hvd.init()
    rank = hvd.rank()
    count = 40_000 if how != "small-dead" else 100
    total = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum) * 2)
    total(jnp.ones(count)).block_until_ready()
    if how == "mismatch":
        count += rank == 1
    elif rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        total(jnp.ones(count)).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        expected = ("Mismatch", "all_reduce", "elements") if how == "mismatch" else ("rank 1",)
        assert any(one in text for one in expected), text
    else:
        raise AssertionError("no rank may go on")
    try:
        hvd.allreduce(jnp.ones(3))
    except slipstream.SlipstreamError as error:
        kind = slipstream.PeerLost if how != "mismatch" else slipstream.SlipstreamError
        assert isinstance(error, kind), repr(error)
    else:
        raise AssertionError("errors stay")


if __name__ == "__main__":
    main()
