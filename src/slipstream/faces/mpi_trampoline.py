"""What `libslipstream_mpi.so` asks Python: to join the job, and for the engine's functions (native/mpi_trampoline)."""

from __future__ import annotations

from slipstream import _core
from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership import job

__all__ = ["gathering_seconds", "start"]

_GATHERING_SECONDS = 300.0


def start() -> object:
    """Joins the job that the environment tells of. The capsule with the C interface, or text: what is wrong."""
    try:
        job.init()
        return _core.c_api()
    except (SlipstreamError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"


def gathering_seconds() -> float:
    """Seconds the ranks have to come to the making of a communicator: 300, or the job's limit if that is less."""
    return min(_GATHERING_SECONDS, job.current_or_only().settings.timeout)
