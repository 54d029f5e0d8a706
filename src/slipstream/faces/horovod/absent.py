"""What Horovod has and slipstream does not, and what to use instead."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.base.misspelt import did_you_mean

__all__ = ["FACES", "hint"]

_START = "start the ranks by slipstream run -H HOST:SLOTS,... or call a function by slipstream.run"

# Packages below `horovod`.
FACES: dict[str, str] = {
    "_keras": "use horovod.keras, which is for Keras 3",
    "ray": _START,
    "spark": f"write the data to files by Spark, and {_START}",
    "data": "use torch.utils.data.DataLoader with num_workers=1 or more, which loads beside the training",
}

_BY_SET = "hvd.ProcessSet has rank(), size() and included()"
_LIBRARY = "slipstream has no such library; call the functions of horovod.torch"

# What programs reach into.
_INSIDE: dict[str, str] = {
    "_add_process_set_impl": "use hvd.add_process_set(ranks)",
    "_remove_process_set_impl": "use hvd.remove_process_set(process_set)",
    "_process_set_rank": _BY_SET,
    "_process_set_size": _BY_SET,
    "_comm_process_set_id": "make a hvd.ProcessSet from a list of ranks",
    "_temp_process_set_object": "use the hvd.ProcessSet that hvd.add_process_set has returned",
    "_init_process_sets": "use hvd.init(process_sets=[...])",
    "MPI_LIB_CTYPES": _LIBRARY,
    "mpi_lib": _LIBRARY,
    "mpi_lib_v2": _LIBRARY,
    "_handle_map": "hvd.poll(handle) and hvd.synchronize(handle) know the operations",
}


def hint(name: str, there: Iterable[str]) -> str:
    """What to use instead of ``name``, for the end of an error; "" if nothing is known. ``there``: names that exist.

    >>> hint("_add_process_set_impl", [])
    ': use hvd.add_process_set(ranks)'
    """
    if name in FACES:
        return f": slipstream has no face for it yet. Meanwhile: {FACES[name]}"
    if name in _INSIDE:
        return f": {_INSIDE[name]}"
    return did_you_mean(name, there)
