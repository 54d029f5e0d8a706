"""The API of mpi4jax; users import `slipstream.mpi4jax`, or mpi4jax itself under ``slipstream run --mpi4jax``."""

from __future__ import annotations

from slipstream.faces.jax.mpi.operations import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    gather,
    has_cuda_support,
    has_sycl_support,
    recv,
    reduce,
    scan,
    scatter,
    send,
    sendrecv,
)

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "gather",
    "has_cuda_support",
    "has_sycl_support",
    "recv",
    "reduce",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]
