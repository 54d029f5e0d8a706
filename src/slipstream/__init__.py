"""slipstream: fast distributed training on ordinary networks.

    import numpy as np
    import slipstream

    slipstream.init()
    total = slipstream.all_reduce(np.ones(4) * slipstream.rank())

Names are loaded on first use: importing the package alone loads neither NumPy nor the native core.
"""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from slipstream.base import entrances as _entrances
from slipstream.base import errors as _errors
from slipstream.base import excepthook as _excepthook
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
_SUBMODULES = ("bench", "lab", "torch")  # of the public interface, imported by those who use them
# What other libraries call it, where that does not look like our name.
_ELSEWHERE = {
    "allgatherv": "all_gather",
    "finalize": "shutdown",
    "get_rank": "rank",
    "get_world_size": "size",
    "init_process_group": "init",
    "local_world_size": "local_size",
    "world_size": "size",
}

__all__ = sorted((*_errors.__all__, *_COMM, *_OPS, *_TIMELINE, "run"))


def _observe(job: Any, settings: Any) -> None:
    if settings.log != "warning":
        importlib.import_module("slipstream.observe.messages").follow(job, settings)
    if settings.timeline is not None:
        importlib.import_module("slipstream.observe.timeline").follow(job, settings)


_entrances.attend(_observe)  # by whichever face a job is entered
_excepthook.install()


def __getattr__(name: str) -> Any:
    if name in _COMM:
        value = getattr(importlib.import_module("slipstream.comm"), name)
    elif name in _TIMELINE:
        value = getattr(importlib.import_module("slipstream.observe.timeline"), name)
    elif name in _OPS:
        value = importlib.import_module("slipstream.base.dtypes").Op[name]
    elif name == "run":
        value = importlib.import_module("slipstream.launch.calls").run
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not: what completion and help() show."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def _hint(name: str) -> str:
    """What was probably meant by a name that is not there."""
    if name.startswith("__"):
        return ""
    if name in _SUBMODULES:
        return f": import slipstream.{name} first"
    plain, ours = name.lower(), {one.lower(): one for one in __all__}
    close = [_ELSEWHERE[plain]] if plain in _ELSEWHERE else difflib.get_close_matches(plain, ours, n=1)
    return f"; did you mean {ours[close[0]]}?" if close else ""
