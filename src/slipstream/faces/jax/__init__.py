"""The face of JAX; users import `slipstream.jax`."""

from __future__ import annotations

from slipstream.base.dtypes import Op
from slipstream.comm.membership.group import Group
from slipstream.comm.membership.job import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from slipstream.faces.jax.operations import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    recv,
    reducescatter,
    send,
    sendrecv,
)
from slipstream.faces.jax.optimizer import DistributedOptimizer, broadcast_parameters

Average, Sum, Product, Min, Max = Op.AVG, Op.SUM, Op.PROD, Op.MIN, Op.MAX

__all__ = [
    "Average",
    "DistributedOptimizer",
    "Group",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "recv",
    "reducescatter",
    "send",
    "sendrecv",
    "shutdown",
    "size",
]
