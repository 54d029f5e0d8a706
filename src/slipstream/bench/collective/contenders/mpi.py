"""Open MPI through mpi4py, on the arrays themselves."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.bench.collective.contenders.interface import Bound, Call, Contender, Place, Unsupported

__all__ = ["open_contender"]

_TYPES = ("float32", "float64", "int8", "uint8", "int32", "int64")  # those MPI can reduce


def open_contender(name: str, place: Place) -> Contender:
    """``mpi``: the processes must be those of ``mpirun``, of the MPI that mpi4py was built for, or ImportError."""
    options: Any = importlib.import_module("mpi4py")
    options.rc.thread_level = "funneled"  # its default, multiple, would make Open MPI take locks
    mpi: Any = importlib.import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (place.rank, place.size):
        raise ImportError(
            f"mpi4py sees rank {world.Get_rank()} of {world.Get_size()}: mpirun is of another MPI"
        )
    library = mpi.Get_library_version().split(",")[0].removeprefix("Open MPI v").strip("\0 ")
    # After a batch some messages may not have left yet, and Open MPI moves them only in calls of its own.
    return Contender(
        name,
        lambda call: Bound(_call(mpi, call, place)),
        settle=world.Barrier,
        versions={"mpi4py": options.__version__, "open-mpi": library},
    )


def _call(mpi: Any, call: Call, place: Place) -> Callable[[], object]:
    world, root = mpi.COMM_WORLD, call.root
    source, target = call.source, call.target
    op = None
    if call.name in ("all_reduce", "reduce_scatter", "reduce"):
        if call.op == "avg":
            raise Unsupported("MPI has no avg")
        if source.dtype.name not in _TYPES:
            raise Unsupported(f"MPI does not reduce {source.dtype.name}")
        op = getattr(mpi, call.op.upper())
    elif source.dtype.name not in _TYPES:  # bytes are bytes
        source = source.view(np.uint8)
        target = source if call.in_place else target.view(np.uint8)
    here = place.rank == root
    after, before = (place.rank + 1) % place.size, (place.rank - 1) % place.size
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: world.Allreduce(mpi.IN_PLACE, target, op),
        "reduce_scatter": lambda: world.Reduce_scatter_block(source, target, op),
        "all_gather": lambda: world.Allgather(source, target),
        "broadcast": lambda: world.Bcast(target, root),
        "reduce": lambda: world.Reduce(mpi.IN_PLACE if here else source, target if here else None, op, root),
        "gather": lambda: world.Gather(source, target if here else None, root),
        "scatter": lambda: world.Scatter(source if here else None, target, root),
        "all_to_all": lambda: world.Alltoall(source, target),
        "send_recv": lambda: world.Sendrecv(source, after, 0, target, before, 0),
        "barrier": world.Barrier,
    }
    return calls[call.name]
