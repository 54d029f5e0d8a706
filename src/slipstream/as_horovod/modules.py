"""The modules of Horovod that programs reach into, and where their names are in slipstream."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.faces.horovod.absent import FACES

__all__ = ["GONE", "MODULES", "Names", "is_package", "modules_in"]


@dataclass(frozen=True)
class Names:
    """What a module has: all that is public in the modules ``of``, and ``others``, each at "module:name"."""

    of: tuple[str, ...] = ()
    others: dict[str, str] = field(default_factory=dict)


def _from(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


_TORCH, _ELASTIC = "slipstream.torch", "slipstream.torch.elastic"
_MXNET = "slipstream.mxnet"
_JOB = "slipstream.faces.horovod.job"
_STATES = "slipstream.faces.horovod.elastic"
_HANDLERS = "slipstream.faces.torch.state_handlers"
_BUILT = "slipstream.as_horovod.built"
_OURS = "slipstream.as_horovod"
_TENSORFLOW, _KERAS = "slipstream.tensorflow", "slipstream.keras"
_KERAS_CALLBACKS, _KERAS_ELASTIC = f"{_KERAS}.callbacks", f"{_KERAS}.elastic"
_EAGERLY = {"_executing_eagerly": "tensorflow:executing_eagerly"}
_BATCH_NORM = _from("slipstream.faces.tensorflow.sync_batch_norm", "SyncBatchNormalization")

# `horovod.tensorflow.keras` is for legacy Keras where ``tf.keras`` is, else as `horovod.keras` for Keras 3.
_KERAS_MODULES = {
    f"horovod{name}": (f"slipstream{name}",)
    for package in (".keras", ".tensorflow.keras")
    for name in (package, f"{package}.callbacks", f"{package}.elastic")
}

MODULES: dict[str, Names] = {
    "horovod": Names(others=_from(f"{_OURS}.running", "run")),
    "horovod.torch": Names((_TORCH,)),
    "horovod.torch.mpi_ops": Names(
        (_TORCH,),
        {"handle_average_backwards_compatibility": "slipstream.faces.horovod.reduce_ops:choose_op"}
        | {"_basics": f"{_OURS}.basics:BASICS"}
        | _from(
            _BUILT,
            "check_installed_version get_average_backwards_compatibility_fun gpu_available num_rank_is_power_2",
        ),
    ),
    "horovod.torch.functions": Names(
        others=_from(
            _TORCH,
            "ProcessSet allgather allgather_object broadcast_ broadcast_async_ broadcast_object "
            "broadcast_optimizer_state broadcast_parameters global_process_set rank size synchronize",
        )
    ),
    "horovod.torch.compression": Names(
        others=_from(_TORCH, "Compression Compressor")
        | _from("slipstream.faces.torch.compression", "NoneCompressor FP16Compressor")
    ),
    "horovod.torch.optimizer": Names(
        others=_from(
            _TORCH,
            "Adasum Average Compression DistributedOptimizer ProcessSet Sum allreduce_async_ broadcast_object "
            "global_process_set grouped_allreduce_async_ rocm_built size sparse_allreduce_async synchronize",
        )
        | _from(_BUILT, "split_list")
        | {
            "_DistributedOptimizer": "slipstream.faces.torch.optimizer:_Distributed",
            "_DistributedAdasumOptimizer": "slipstream.faces.torch.adasum_steps:AdasumSteps",
        }
    ),
    "horovod.torch.sync_batch_norm": Names(others=_from(_TORCH, "SyncBatchNorm")),
    "horovod.torch.elastic": Names((_ELASTIC,), _from(_STATES, "run_fn") | _from(_TORCH, "init shutdown")),
    "horovod.torch.elastic.state": Names((_HANDLERS,), _from(_ELASTIC, "ElasticSampler TorchState")),
    "horovod.torch.elastic.sampler": Names(others=_from(_ELASTIC, "ElasticSampler")),
    "horovod.mxnet": Names((_MXNET,)),
    "horovod.mxnet.mpi_ops": Names((_MXNET,)),
    "horovod.mxnet.functions": Names(others=_from(_MXNET, "allgather_object broadcast_object")),
    "horovod.mxnet.compression": Names(others=_from(_MXNET, "Compression")),
    "horovod.tensorflow": Names(
        (_TENSORFLOW,),
        _EAGERLY
        | _BATCH_NORM
        | {"handle_average_backwards_compatibility": "slipstream.faces.horovod.reduce_ops:choose_op"},
    ),
    "horovod.tensorflow.mpi_ops": Names(
        (_TENSORFLOW,),
        {"handle_average_backwards_compatibility": "slipstream.faces.horovod.reduce_ops:choose_op"}
        | {"_basics": f"{_OURS}.basics:BASICS"}
        | _BATCH_NORM,
    ),
    "horovod.tensorflow.functions": Names(
        others=_from(
            _TENSORFLOW,
            "allgather_object broadcast_object broadcast_object_fn broadcast_variables",
        )
    ),
    "horovod.tensorflow.compression": Names(
        others=_from(_TENSORFLOW, "Compression Compressor")
        | _from("slipstream.faces.arrays.compression", "NoneCompressor FP16Compressor")
    ),
    "horovod.tensorflow.sync_batch_norm": Names(others=_BATCH_NORM),
    "horovod.tensorflow.util": Names(others=_EAGERLY | {"_cache": "functools:cache"}),
    "horovod.tensorflow.elastic": Names((f"{_TENSORFLOW}.elastic",)),
    **{name: Names(of) for name, of in _KERAS_MODULES.items()},
    "horovod.common": Names(),
    "horovod.common.basics": Names(others=_from(f"{_OURS}.basics", "HorovodBasics")),
    "horovod.common.elastic": Names(
        others=_from(_STATES, "HostsUpdatedInterrupt ObjectState State run_fn")
        | _from(_JOB, "HorovodInternalError")
    ),
    "horovod.common.exceptions": Names(
        others=_from(_JOB, "HorovodInternalError")
        | _from(_STATES, "HostsUpdatedInterrupt")
        | _from(_BUILT, "HorovodVersionMismatchError get_version_mismatch_message")
    ),
    "horovod.common.process_sets": Names(("slipstream.faces.horovod.process_sets",)),
    "horovod.common.util": Names(
        others=_from(
            _BUILT,
            "EXTENSIONS HorovodVersionMismatchError ccl_built check_extension check_installed_version ddl_built env "
            "extension_available get_average_backwards_compatibility_fun get_ext_suffix get_extension_full_path "
            "get_version_mismatch_message gloo_built gpu_available is_iterable is_version_greater_equal_than mpi_built "
            "nccl_built num_rank_is_power_2 split_list",
        )
        | {"_cache": "functools:cache"}
    ),
    "horovod.runner": Names(others=_from(f"{_OURS}.running", "run")),
    "horovod.runner.launch": Names(others={"run_commandline": "slipstream.cli.horovodrun:main"}),
    "horovod.runner.common": Names(),
    "horovod.runner.common.util": Names(),
    "horovod.runner.common.util.env": Names(others=_from(_BUILT, "get_env_rank_and_size")),
    "horovod.runner.util": Names(),
    "horovod.runner.util.threads": Names(
        others=_from(f"{_OURS}.threads", "execute_function_multithreaded in_thread on_event")
    ),
}

# With everything below them: what there is not, and what to use meanwhile.
GONE: dict[str, str] = {f"horovod.{name}": instead for name, instead in FACES.items()}


def is_package(name: str) -> bool:
    """Whether there are modules below this one."""
    return any(other.startswith(f"{name}.") for other in MODULES)


def modules_in(package: str) -> list[str]:
    """The names of the modules right below this one."""
    return sorted(name.rpartition(".")[2] for name in MODULES if name.rpartition(".")[0] == package)
