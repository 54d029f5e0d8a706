"""slipstream: fast distributed training on ordinary networks.

    import numpy as np
    import slipstream

    slipstream.init()
    total = slipstream.all_reduce(np.ones(4) * slipstream.rank())

Names are loaded on first use: importing the package alone loads neither NumPy nor the native core. `__init__.pyi` tells
type checkers and editors what they are.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from slipstream.base import errors as _errors
from slipstream.base import excepthook as _excepthook
from slipstream.base import job_observers as _job_observers
from slipstream.base.errors import Aborted, Mismatch, PeerLost, Refused, SlipstreamError, Timeout
from slipstream.base.misspelt import did_you_mean as _did_you_mean
from slipstream.comm import COLLECTIVES as _COLLECTIVES
from slipstream.comm import __all__ as _COMM

_TIMELINE = ("start_timeline", "stop_timeline")
_RECORDING = ("timeline_mark", "timeline_span")
_STEPS = ("mark_step",)
_HEADER = ("get_include",)
_OPS = ("SUM", "PROD", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")
_SUBMODULES = ("bench", "jax", "lab", "torch")  # of the public interface, imported by those who use them
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

__all__ = sorted((*_errors.__all__, *_COMM, *_OPS, *_STEPS, *_TIMELINE, *_RECORDING, *_HEADER, "run"))


def _observe(job: Any, settings: Any) -> None:
    # A signal's handler could break off the first call of a collective that is still to be imported.
    for name in _COLLECTIVES:
        getattr(sys.modules[__name__], name)
    wires = settings.wire != "exact" or settings.wire_gather
    tuning = settings.autotune != "off" or settings.autotune_log
    # Settings may have no effect, and reducers may be lost: warnings.
    if settings.log != "warning" or settings.reducers or wires or tuning:
        importlib.import_module("slipstream.observe.messages").follow(job, settings)
    if importlib.import_module("slipstream.base.settings").of_horovod():
        importlib.import_module("slipstream.observe.of_horovod").tell(job)
    if settings.timeline is not None:
        importlib.import_module("slipstream.observe.timeline").follow(job, settings)
    importlib.import_module("slipstream.observe.metrics_follow").follow(job, settings)


_job_observers.observe_jobs(_observe)  # by whichever face a job is entered
_excepthook.install()


def __getattr__(name: str) -> Any:
    if name in _COMM:
        value = getattr(importlib.import_module("slipstream.comm"), name)
    elif name in _TIMELINE:
        value = getattr(importlib.import_module("slipstream.observe.timeline"), name)
    elif name in _RECORDING:
        value = getattr(importlib.import_module("slipstream.base.recording"), name)
    elif name in _HEADER:
        value = getattr(importlib.import_module("slipstream.base.header"), name)
    elif name in _STEPS:
        value = getattr(importlib.import_module("slipstream.base.training"), name)
    elif name in _OPS:
        value = importlib.import_module("slipstream.base.dtypes").Op[name]
    elif name == "run":
        value = importlib.import_module("slipstream.launch.calls").run
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not: what completion and help() show."""
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})


def _version() -> str:
    metadata = importlib.import_module("importlib.metadata")  # half of what starting the command would take
    try:
        return str(metadata.version("slipstream"))
    except metadata.PackageNotFoundError:  # run from a source tree
        return "0+unknown"


def _hint(name: str) -> str:
    """What was probably meant by a name that is not there."""
    if name in _SUBMODULES:
        return f": import slipstream.{name} first"
    return _did_you_mean(_ELSEWHERE.get(name.lower(), name), __all__)
