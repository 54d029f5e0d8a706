"""One rank of the tests of leaving: computations are under way whose results it does not read.

leaving_rank.py FOLDER end | shutdown | dead | fork
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import slipstream.jax as hvd

import jax  # isort: skip - after slipstream: at the end JAX lets go of its devices first
import jax.numpy as jnp

STEPS, SIDE = 40, 200


def train() -> jax.Array:
    step = jax.jit(lambda x: hvd.allreduce(jnp.tanh(x @ x), hvd.Sum) / hvd.size())
    x = jnp.ones((SIDE, SIDE))
    for number in range(STEPS):
        if sys.argv[2] == "dead" and hvd.rank() == 1 and number == STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        x = step(x)
    return x


def main() -> None:
    hvd.init()
    last = train()
    if sys.argv[2] == "fork" and os.fork() == 0:
        sys.exit(0)  # as a process of its own that ends in good order
    if hvd.rank() == 0:
        (Path(sys.argv[1]) / "last").write_text(str(float(last[0, 0])))
    del last
    if sys.argv[2] == "shutdown":
        hvd.shutdown()


if __name__ == "__main__":
    main()
