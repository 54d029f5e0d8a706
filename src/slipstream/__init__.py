"""slipstream: fast distributed training on ordinary networks.

    import numpy as np
    import slipstream

    slipstream.init()
    total = slipstream.all_reduce(np.ones(4) * slipstream.rank())

Names are loaded on first use: importing the package alone loads neither NumPy nor the native core.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from slipstream.base import entrances as _entrances
from slipstream.base import errors as _errors
from slipstream.base.errors import Aborted, Mismatch, PeerLost, Refused, SlipstreamError, Timeout

try:
    __version__ = version("slipstream")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0+unknown"

_COMM = (
    "BLOCK_INT8",
    "Group",
    "LaneStatistics",
    "LinkStatistics",
    "Work",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "cross_rank",
    "cross_size",
    "dequantize",
    "empty",
    "gather",
    "init",
    "is_initialized",
    "link_statistics",
    "local_rank",
    "local_size",
    "quantize",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "shutdown",
    "size",
    "world",
)
_TIMELINE = ("start_timeline", "stop_timeline")
_OPS = ("SUM", "PROD", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")

__all__ = sorted((*_errors.__all__, *_COMM, *_OPS, *_TIMELINE))


def _observe(job: Any, settings: Any) -> None:
    if settings.timeline is not None:
        importlib.import_module("slipstream.observe.timeline").follow(job, settings)


_entrances.attend(_observe)  # by whichever face a job is entered


def __getattr__(name: str) -> Any:
    if name in _COMM:
        value = getattr(importlib.import_module("slipstream.comm"), name)
    elif name in _TIMELINE:
        value = getattr(importlib.import_module("slipstream.observe.timeline"), name)
    elif name in _OPS:
        value = importlib.import_module("slipstream.base.dtypes").Op[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
