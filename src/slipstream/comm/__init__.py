"""The framework-neutral face: join a job, make groups, run collectives on arrays.

Names are loaded on first use, so that the launcher can use the store without loading the native core.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "slipstream.comm.membership.job": (
        "init",
        "shutdown",
        "is_initialized",
        "rank",
        "size",
        "local_rank",
        "local_size",
        "cross_rank",
        "cross_size",
    ),
    "slipstream.comm.membership.group": ("Group", "world"),
    "slipstream.comm.collectives.buffers": ("empty",),
    "slipstream.comm.collectives.block_int8": ("BLOCK_INT8", "dequantize", "quantize"),
    "slipstream.comm.membership.statistics": ("LaneStatistics", "LinkStatistics", "link_statistics"),
    "slipstream.comm.collectives.work": ("Work",),
    "slipstream.comm.collectives.arrays": (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "barrier",
        "broadcast",
        "gather",
        "recv",
        "reduce",
        "reduce_scatter",
        "scatter",
        "send",
    ),
}
COLLECTIVES = tuple(_HOMES["slipstream.comm.collectives.arrays"])
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
