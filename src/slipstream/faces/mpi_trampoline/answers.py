"""The functions that `libslipstream_mpi.so` calls."""

from __future__ import annotations

import sys

from slipstream import _core
from slipstream.base.errors import SlipstreamError
from slipstream.base.log import Log
from slipstream.comm.membership import job
from slipstream.faces.mpi_trampoline import ahead, groups

__all__ = [
    "gathering_seconds",
    "group_made_now",
    "group_sizes",
    "operation_seconds",
    "parting_seconds",
    "process_number",
    "start",
    "watch_jax",
]

_GATHERING_SECONDS = 300.0
_log = Log("slipstream")


def start() -> object:
    """Joins the job that the environment tells of. The capsule with the C interface, or text: what is wrong."""
    try:
        job.init()
        return _core.c_api()
    except (SlipstreamError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"


def process_number() -> str:
    """The number that JAX gives this process; -1 if it gives none."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return str(getattr(state, "process_id", -1))


def watch_jax(numbers: str) -> str:
    """From now on the groups of JAX's computations are made before these run. ``numbers``: "0 1", by rank."""
    ahead.watch([int(number) for number in numbers.split()])
    return ""


def group_made_now(first: int, place: int) -> str:
    """What `ahead.group_of` finds."""
    return ahead.group_of(first, place)


def group_sizes(first: int, place: int, made: str) -> str:
    """What `groups.sizes` finds; empty where it fails, whatever it is that fails in another version of JAX."""
    try:
        return groups.sizes(first, place, made)
    except Exception as error:
        _log.info(f"the groups of a computation cannot be found out: {type(error).__name__}: {error}")
        return ""


def gathering_seconds() -> float:
    """Seconds the ranks have to come to the making of a communicator: 300, or the job's limit if that is less."""
    return min(_GATHERING_SECONDS, job.current_or_only().settings.timeout)


def operation_seconds() -> float:
    """Seconds that an operation may take."""
    return float(job.current_or_only().settings.timeout)


def parting_seconds() -> float:
    """Seconds that this rank waits at its end for the others; 0 if an exception ends it, which they shall see soon."""
    return 0.0 if hasattr(sys, "last_value") else gathering_seconds()
