"""The Horovod API for MXNet 1.9 (public path: `slipstream.mxnet`)."""

from __future__ import annotations

from slipstream.faces.mxnet.aliases import restore

restore()  # before the first import of MXNet

from slipstream.faces.horovod.job import (  # noqa: E402
    HorovodInternalError,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from slipstream.faces.horovod.objects import allgather_object, broadcast_object  # noqa: E402
from slipstream.faces.horovod.process_sets import (  # noqa: E402
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from slipstream.faces.horovod.reduce_ops import Average, Max, Min, Product, Sum  # noqa: E402
from slipstream.faces.mxnet.compression import Compression  # noqa: E402
from slipstream.faces.mxnet.operations import (  # noqa: E402
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
    reducescatter_,
)
from slipstream.faces.mxnet.store import Slipstream, replace_stores  # noqa: E402
from slipstream.faces.mxnet.training import (  # noqa: E402
    DistributedOptimizer,
    DistributedTrainer,
    broadcast_parameters,
)

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Slipstream",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "reducescatter_",
    "remove_process_set",
    "replace_stores",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
