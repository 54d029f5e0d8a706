"""The names of ``mpi4py.MPI`` that there are here. Importing it joins no job: the first use of COMM_WORLD does."""

from __future__ import annotations

import socket
import time
from importlib.metadata import version
from typing import Any

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership import job as jobs
from slipstream.faces.mpi.communicator import COMM_NULL, COMM_SELF, COMM_WORLD, Comm, Intracomm
from slipstream.faces.mpi.ops import (
    ANY_SOURCE,
    ANY_TAG,
    BAND,
    BOR,
    BXOR,
    LAND,
    LOR,
    LXOR,
    MAX,
    MIN,
    PROC_NULL,
    PROD,
    SUM,
    UNDEFINED,
    Op,
    Status,
)

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BAND",
    "BOR",
    "BXOR",
    "COMM_NULL",
    "COMM_SELF",
    "COMM_WORLD",
    "LAND",
    "LOR",
    "LXOR",
    "MAX",
    "MIN",
    "PROC_NULL",
    "PROD",
    "SUM",
    "THREAD_FUNNELED",
    "THREAD_MULTIPLE",
    "THREAD_SERIALIZED",
    "THREAD_SINGLE",
    "UNDEFINED",
    "Comm",
    "Exception",
    "Finalize",
    "Get_library_version",
    "Get_processor_name",
    "Get_version",
    "Init",
    "Init_thread",
    "Intracomm",
    "Is_finalized",
    "Is_initialized",
    "Op",
    "Query_thread",
    "Status",
    "Wtime",
    "get_vendor",
]

THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
Exception = SlipstreamError


def Init() -> None:
    """Joins the job."""
    jobs.init()


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    """Joins the job; THREAD_MULTIPLE: any thread may call."""
    jobs.init()
    return THREAD_MULTIPLE


def Query_thread() -> int:
    """THREAD_MULTIPLE."""
    return THREAD_MULTIPLE


def Is_initialized() -> bool:
    """True, as in programs that have imported mpi4py: the job is joined when it is used."""
    return True


def Is_finalized() -> bool:
    """False: `Finalize` leaves a job that may be joined again."""
    return False


def Finalize() -> None:
    """Leaves the job."""
    jobs.shutdown()


def Get_version() -> tuple[int, int]:
    """The version of MPI's standard that the names are of."""
    return 4, 0


def Get_library_version() -> str:
    """The name of this library, and its version."""
    return f"slipstream {version('slipstream')}"


def get_vendor() -> tuple[str, tuple[int, ...]]:
    """The same, as mpi4py gives it."""
    return "slipstream", tuple(int(part) for part in version("slipstream").split(".")[:3] if part.isdigit())


def Get_processor_name() -> str:
    """The name of the host."""
    return socket.gethostname()


def Wtime() -> float:
    """Seconds since some moment."""
    return time.perf_counter()


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"slipstream stands in for mpi4py here, and its MPI has no {name}: docs/mpi4jax.md lists what it has"
    )
