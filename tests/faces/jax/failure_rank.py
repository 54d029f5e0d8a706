"""One rank of the tests of failures under JAX.

failure_rank.py mismatch | shape | dead | small-dead
"""

from __future__ import annotations

import os
import signal
import sys

import jax
import jax.numpy as jnp
import pytest

import slipstream
import slipstream.jax as hvd


def differing_shapes() -> None:
    """As many elements in another shape are another array."""
    shape = (4, 3) if hvd.rank() == 1 else (3, 4)
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=r"shape 3x4.*shape 4x3|shape 4x3.*shape 3x4"
    ):
        jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))(jnp.ones(shape)).block_until_ready()


def main() -> None:
    how = sys.argv[1]
    hvd.init()
    if how == "shape":
        differing_shapes()
        return
    rank = hvd.rank()
    count = 40_000 if how != "small-dead" else 100
    total = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum) * 2)
    total(jnp.ones(count)).block_until_ready()
    if how == "mismatch":
        count += rank == 1
    elif rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    expected = r"Mismatch|all_reduce|elements" if how == "mismatch" else r"rank 1"
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=expected):
        total(jnp.ones(count)).block_until_ready()
    kind = slipstream.PeerLost if how != "mismatch" else slipstream.SlipstreamError
    with pytest.raises(kind):  # errors stay
        hvd.allreduce(jnp.ones(3))


if __name__ == "__main__":
    main()
