"""Horovod, through horovod.torch: its own names for collectives, results in new tensors where it has no other way."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from slipstream.bench.collective.contenders.interface import Bound, Call, Contender, Place, Unsupported

__all__ = ["open_contender"]

_OPS = {"sum": "Sum", "avg": "Average", "min": "Min", "max": "Max", "prod": "Product"}


def open_contender(name: str, place: Place) -> Contender:
    """``horovod``: the processes must be those of ``mpirun``, and Horovod be built for MPI, or ImportError."""
    torch: Any = importlib.import_module("torch")
    try:
        horovod: Any = importlib.import_module("horovod.torch")
    except Exception as error:  # a build for another PyTorch fails in many ways
        raise ImportError(f"horovod.torch does not load: {error}") from error
    if hasattr(importlib.import_module("horovod"), "__slipstream__"):
        raise ImportError("the package horovod here is slipstream itself")
    torch.set_num_threads(1)
    horovod.init()
    if (horovod.rank(), horovod.size()) != (place.rank, place.size):
        raise ImportError(
            f"Horovod sees rank {horovod.rank()} of {horovod.size()}: it is not built for this MPI"
        )
    version = getattr(importlib.import_module("horovod"), "__version__", "unknown")
    return Contender(
        name, lambda call: _bind(torch, horovod, call), close=horovod.shutdown, versions={"horovod": version}
    )


def _bind(torch: Any, horovod: Any, call: Call) -> Bound:
    if call.source.dtype.name == "bfloat16":
        raise Unsupported("horovod.torch has no bfloat16")
    source, target = torch.from_numpy(call.source), torch.from_numpy(call.target)
    op = getattr(horovod, _OPS.get(call.op, ""), None)
    reduces = call.name in ("all_reduce", "reduce_scatter")
    if reduces and op is None:
        raise Unsupported(f"horovod.torch has no {call.op}")
    results: list[Any] = []

    def keep(result: Any) -> None:
        results[:] = [result[0] if isinstance(result, tuple) else result]

    calls: dict[str, tuple[str, Callable[[], object]]] = {
        "all_reduce": ("allreduce_", lambda: horovod.allreduce_(target, op=op)),
        "broadcast": ("broadcast_", lambda: horovod.broadcast_(target, call.root)),
        "reduce_scatter": ("reducescatter", lambda: keep(horovod.reducescatter(source, op=op))),
        "all_gather": ("allgather", lambda: keep(horovod.allgather(source))),
        "all_to_all": ("alltoall", lambda: keep(horovod.alltoall(source))),
        "barrier": ("barrier", lambda: horovod.barrier()),
    }
    function, run = calls.get(call.name, ("", lambda: None))
    if not hasattr(horovod, function):
        raise Unsupported(f"horovod.torch has no {call.name}")

    def after() -> None:
        if results:
            target.copy_(results[0])

    return Bound(run, after=after)
