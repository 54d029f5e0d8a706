"""The job as Horovod scripts see it: start, end, who am I, and what was built in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slipstream import comm as _comm
from slipstream.base.errors import SlipstreamError
from slipstream.faces.horovod import handles as _handles
from slipstream.faces.horovod import process_sets as _sets
from slipstream.gradients.joining import join as _join
from slipstream.observe import timeline as _timeline

__all__ = [
    "HorovodInternalError",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

# Horovod's name for what goes wrong while a job runs; scripts catch it.
HorovodInternalError = SlipstreamError


def init(
    comm: Any = None, process_sets: Sequence[_sets.ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Joins the job; every rank calls it. Calling it again while initialised does nothing, unless the job has failed.

    ``comm`` may be None, the list of all ranks, or an mpi4py communicator of the size of the job; the ranks
    come from the launcher in any case. ``process_sets`` are registered on the way, as by `add_process_set`;
    "dynamic" is accepted, since process sets always are. Raises ValueError for other arguments,
    SlipstreamError when the ranks do not find each other. After a failure it raises the job's error again, until
    all ranks have called `shutdown`; `hvd.elastic.run` needs neither of the two.

    >>> hvd.init()
    """
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(f'process_sets must be None, a list or "dynamic", not {process_sets!r}')
    before = _comm.is_initialized()
    _comm.init()
    if before:
        return
    if comm is not None:
        wanted = comm.Get_size() if hasattr(comm, "Get_size") else len(comm)
        if wanted not in (0, size()):
            _comm.shutdown()
            raise ValueError("a job cannot have some of its ranks only; use process sets")
    _sets.start([] if process_sets is None or isinstance(process_sets, str) else process_sets)
    for prepare in _preparing:
        prepare()


_preparing: list[Callable[[], object]] = []


def prepare_by(prepare: Callable[[], object]) -> None:
    """A face of a framework: ``prepare`` is called when the process is in a job."""
    _preparing.append(prepare)
    if _comm.is_initialized():
        prepare()


def shutdown() -> None:
    """Leaves the job. `init` may be called again afterwards.

    >>> hvd.shutdown()
    >>> hvd.init()
    """
    _comm.shutdown()
    _sets.stop()
    _handles.forget_all()


def join(device: object = None) -> int:
    """For a rank that has no more batches: takes part in what the others do until all ranks have called it.

    This rank gives zeros to the steps of every `DistributedOptimizer` of all ranks, and to their sums and averages;
    Average divides by the number of all ranks. To Min, Max and Product it gives what does not change them, to allgather
    and alltoall no rows; what it receives is dropped. It counts as having come to every `barrier`. A broadcast from
    this rank, of parameters or of objects, and an `allgather_object` raise Mismatch on the others. Operations of
    smaller process sets do not end before all of their ranks have joined. ``device`` is accepted and changes nothing.
    Returns the rank that called it last, whose parameters all steps have changed: broadcast them from there.

    >>> hvd.join() in range(hvd.size())
    True
    """
    _sets.require_init()
    return _join(_comm.world(), _handles.take_part, _handles.beside_join())


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` not since.

    >>> hvd.is_initialized()
    True
    """
    return bool(_comm.is_initialized())


def rank() -> int:
    """Number of this process in the job, from 0; ValueError before `init`, as for all numbers below.

    >>> hvd.rank()  # on rank 0
    0
    """
    _sets.require_init()
    return int(_comm.rank())


def size() -> int:
    """Number of processes in the job.

    >>> hvd.size()
    2
    """
    _sets.require_init()
    return int(_comm.size())


def local_rank() -> int:
    """Number of this process on its host.

    >>> hvd.local_rank()  # on rank 0
    0
    """
    _sets.require_init()
    return int(_comm.local_rank())


def local_size() -> int:
    """Number of processes of the job on this host.

    >>> hvd.local_size()
    2
    """
    _sets.require_init()
    return int(_comm.local_size())


def cross_rank() -> int:
    """Number of this host among those that have a process of this local rank.

    >>> hvd.cross_rank()
    0
    """
    _sets.require_init()
    return int(_comm.cross_rank())


def cross_size() -> int:
    """Number of hosts that have a process of this local rank.

    >>> hvd.cross_size()
    1
    """
    _sets.require_init()
    return int(_comm.cross_size())


def is_homogeneous() -> bool:
    """Whether this rank sees as many processes on its host as an even spread over the hosts would give.

    >>> hvd.is_homogeneous()
    True
    """
    return local_size() * cross_size() == size()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes a timeline of all ranks (docs/timeline.md) from now on; every rank calls it. ValueError before `init`.

    ``file_path``: rank 0 writes it. ``mark_cycles`` is accepted: the rounds of the negotiation are always marked.
    HOROVOD_TIMELINE begins a timeline with `init`.

    >>> hvd.start_timeline("trace.json")
    >>> hvd.stop_timeline()
    """
    _sets.require_init()
    _timeline.start_timeline(file_path)


def stop_timeline() -> None:
    """Ends the timeline, if there is one; ValueError before `init`.

    >>> hvd.stop_timeline()
    """
    _sets.require_init()
    _timeline.stop_timeline()


def mpi_threads_supported() -> bool:
    """False: slipstream uses no MPI. Operations may be submitted from any thread all the same.

    >>> hvd.mpi_threads_supported()
    False
    """
    _sets.require_init()
    return False


def mpi_enabled() -> bool:
    """False: slipstream uses no MPI.

    >>> hvd.mpi_enabled()
    False
    """
    return False


def mpi_built() -> bool:
    """False: slipstream uses no MPI.

    >>> hvd.mpi_built()
    False
    """
    return False


def gloo_enabled() -> bool:
    """True: scripts that ask mean "does it work without MPI", and it does, on our own engine.

    >>> hvd.gloo_enabled()
    True
    """
    return True


def gloo_built() -> bool:
    """True, for the reason given at `gloo_enabled`.

    >>> hvd.gloo_built()
    True
    """
    return True


def nccl_built() -> int:
    """0: slipstream uses no NCCL. (Horovod answers with a version number or 0.)

    >>> hvd.nccl_built()
    0
    """
    return 0


def ddl_built() -> bool:
    """False: slipstream uses no DDL.

    >>> hvd.ddl_built()
    False
    """
    return False


def ccl_built() -> bool:
    """False: slipstream uses no oneCCL.

    >>> hvd.ccl_built()
    False
    """
    return False


def cuda_built() -> bool:
    """False: the engine is for CPUs; CUDA tensors are copied to the host and back.

    >>> hvd.cuda_built()
    False
    """
    return False


def rocm_built() -> bool:
    """False: the engine is for CPUs.

    >>> hvd.rocm_built()
    False
    """
    return False
