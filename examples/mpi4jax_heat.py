"""Heat in a square plate, by mpi4jax: each process has some rows of it, and sends its neighbours the outer ones.

    slipstream run -np 2 --mpi4jax -- python examples/mpi4jax_heat.py [--points 128] [--steps 2000]

The program imports mpi4jax and mpi4py, and nothing of slipstream: under ``mpirun`` it runs on the originals. It solves
the heat equation by explicit steps, the edges held at 0, and compares what is left with the exact decay of the first
mode. Any number of processes that divides the points prints the same numbers.
"""

from __future__ import annotations

import argparse
import math

import jax
import jax.numpy as jnp
import mpi4jax
from mpi4py import MPI

jax.config.update("jax_enable_x64", True)

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


def with_neighbours(rows: jax.Array) -> jax.Array:
    """The rows, with the last one of the process before, and the first one of the process behind. Edges are 0."""
    edge = jnp.zeros_like(rows[:1])
    before = rank - 1 if rank > 0 else MPI.PROC_NULL
    behind = rank + 1 if rank < size - 1 else MPI.PROC_NULL
    above = mpi4jax.sendrecv(rows[-1:], edge, source=before, dest=behind, comm=comm)
    below = mpi4jax.sendrecv(rows[:1], edge, source=behind, dest=before, comm=comm)
    return jnp.concatenate([above, rows, below])


def solve(rows: jax.Array, steps: int) -> jax.Array:
    """The rows after so many steps, each of a quarter of what would be unstable."""

    def step(_: int, rows: jax.Array) -> jax.Array:
        tall = jnp.pad(with_neighbours(rows), ((0, 0), (1, 1)))
        around = tall[:-2, 1:-1] + tall[2:, 1:-1] + tall[1:-1, :-2] + tall[1:-1, 2:]
        return rows + 0.0625 * (around - 4 * rows)

    return jax.lax.fori_loop(0, steps, step, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=128)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    points, per_process = args.points, args.points // size
    if points % size:
        parser.error(f"{size} processes do not divide {points} points")
    wave = jnp.sin(jnp.pi * jnp.arange(1, points + 1) / (points + 1))
    mine = wave[rank * per_process : (rank + 1) * per_process, None] * wave[None, :]
    left = jax.jit(solve, static_argnums=1)(mine, args.steps)
    whole = mpi4jax.gather(left, root=0, comm=comm)
    hottest = mpi4jax.reduce(left.max(), op=MPI.MAX, root=0, comm=comm)
    if rank == 0:
        decay = 1 - 8 * 0.0625 * math.sin(math.pi / 2 / (points + 1)) ** 2
        exact = decay**args.steps * float(wave.max()) ** 2
        print(f"{points} x {points} points, {args.steps} steps, on {size} processes")
        print(f"heat in all    {float(whole.reshape(points, points).sum()):.12g}")
        print(f"heat at most   {float(hottest):.12g}")
        print(f"heat expected  {exact:.12g}", flush=True)
        assert abs(float(hottest) - exact) < 1e-9


if __name__ == "__main__":
    main()
