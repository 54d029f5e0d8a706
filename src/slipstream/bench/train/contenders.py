"""Who exchanges the gradients: each contender wraps a replica of the model in its own way.

``plain`` exchanges nothing. DDP contenders are `DistributedDataParallel` over a backend of `torch.distributed`, all
with the same bucket size; Horovod's kind has an optimizer that reduces, with buckets of its own. ``slipstream-ring`` is
slipstream without the reducers that the job may have.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from slipstream import comm
from slipstream.base.dtypes import DType
from slipstream.base.settings import Settings
from slipstream.bench.train.options import PLAIN, RING
from slipstream.bench.train.workloads import Workload
from slipstream.comm.membership import job
from slipstream.comm.membership.group import Group
from slipstream.comm.rendezvous.discovery import advertised_addresses, interfaces
from slipstream.gradients.buckets import Parameter, cut
from slipstream.plan.choose import choose

__all__ = ["NAMES", "Contender", "build", "leave", "missing", "mpi_ranks", "reducers"]

_DDP_DEFAULT_MB = 25.0
_DDP = ("slipstream", RING, "gloo", "mpi", "nccl")
_HOROVOD = {"slipstream-horovod": "slipstream.torch", "horovod": "horovod.torch"}
NAMES = (PLAIN, *_DDP, *_HOROVOD)


@dataclass(frozen=True)
class Contender:
    """A wrapped replica, and how to use it.

    ``finish`` completes the step after backward. ``exchange`` all-reduces buckets like those of a step, back to back,
    with nothing to overlap. ``buckets``: their sizes in bytes, known after the first steps.
    """

    name: str
    workload: Workload
    module: nn.Module
    parameters: list[nn.Parameter]
    finish: Callable[[], None]
    exchange: Callable[[], None]
    buckets: Callable[[], list[int]]


def mpi_ranks(names: Sequence[str]) -> bool:
    """Whether the ranks must be those of ``mpirun``: a contender that can run needs it."""
    horovod = "horovod" in names and importlib.util.find_spec("horovod") is not None
    return horovod or ("mpi" in names and dist.is_mpi_available())


def missing(name: str, compute: str) -> str:
    """Why a contender cannot take part on this rank, "" if it can."""
    if name == "mpi" and not dist.is_mpi_available():
        return "unsupported: this PyTorch is built without MPI"
    if name == "nccl":
        if not (dist.is_nccl_available() and torch.cuda.device_count() > comm.local_rank()):
            return "no CUDA GPU for every rank, or PyTorch without NCCL"
        if compute != "delay":
            return "unsupported: real compute is on the CPU"
    if name == "horovod":
        try:
            importlib.import_module(_HOROVOD[name])
        except Exception as error:  # whatever a broken build raises
            return f"cannot be imported ({error}); pip install horovod"
        if hasattr(importlib.import_module("horovod"), "__slipstream__"):
            return "the package horovod here is slipstream itself"
    return ""


def build(name: str, workload: Workload, bucket_mb: float, sgd: bool) -> Contender:
    """Makes a contender; collective: every rank makes the same ones in the same order."""
    module = workload.replica()
    parameters = list(module.parameters())
    # A rate of zero: all the work of a step, and the contenders go on sharing their parameters.
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    apply = optimizer.step if sgd else lambda: None
    if name in _HOROVOD:
        return _horovod(name, workload, module, optimizer, sgd)
    if name == PLAIN:
        return Contender(name, workload, module, parameters, apply, lambda: None, list)
    return _ddp(name, workload, module, apply, bucket_mb)


def _ddp(
    name: str, workload: Workload, module: nn.Module, apply: Callable[[], Any], bucket_mb: float
) -> Contender:
    group = _group(name, int(bucket_mb * (1 << 20)))
    wrapped = DistributedDataParallel(
        module,
        process_group=group,
        # Only without a size of ours does DDP make its first bucket a small one.
        bucket_cap_mb=None if bucket_mb == _DDP_DEFAULT_MB else bucket_mb,
        init_sync=False,  # all replicas of a rank are on one memory, which all ranks fill alike
    )
    accelerator = workload.scratch.device.type != "cpu"

    def finish() -> None:
        apply()
        if accelerator:
            torch.cuda.synchronize()

    @functools.cache  # first used after the warm-up, when the buckets are the final ones
    def parts() -> list[Tensor]:
        return _parts(workload.scratch, buckets())

    def exchange() -> None:
        works = [dist.all_reduce(part, group=group, async_op=True) for part in parts()]
        for work in works:
            work.wait()
        if accelerator:
            torch.cuda.synchronize()

    def buckets() -> list[int]:
        known: dict[str, Any] = wrapped._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        return [int(size) for size in (known.get("rebuilt_bucket_sizes") or known["bucket_sizes"]).split(",")]

    return Contender(name, workload, wrapped, list(module.parameters()), finish, exchange, buckets)


def _parts(memory: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Sections of ``memory`` (float32) of ``sizes`` bytes, one after the other."""
    counts = [size // 4 for size in sizes]
    return list(torch.split(memory[: sum(counts)], counts))


def _horovod(
    name: str, workload: Workload, module: nn.Module, optimizer: torch.optim.Optimizer, sgd: bool
) -> Contender:
    hvd: Any = importlib.import_module(_HOROVOD[name])
    hvd.init()
    if hvd.size() != comm.size():
        raise RuntimeError(f"{name} sees {hvd.size()} ranks of {comm.size()}")
    parameters = list(module.parameters())
    reducing = hvd.DistributedOptimizer(optimizer, named_parameters=list(module.named_parameters()))
    shapes = [p.shape for p in reversed(parameters)]
    sizes = _slipstream_buckets(shapes) if name.startswith("slipstream") else [4 * s.numel() for s in shapes]
    exchange = _exchange(sizes) if name.startswith("slipstream") else _horovod_exchange(hvd, workload, sizes)
    finish = reducing.step if sgd else reducing.synchronize
    return Contender(name, workload, module, parameters, finish, exchange, lambda: sizes)


def _exchange(sizes: Sequence[int]) -> Callable[[], None]:
    """All-reduces buckets as slipstream's own optimizer does: in memory that a host shares, by the wire of the job."""
    memory = comm.empty((sum(sizes) // 4,), np.float32)
    memory[:] = 0
    parts = np.split(memory, np.cumsum([size // 4 for size in sizes[:-1]]))
    wire = Settings.from_environment().wire

    def exchange() -> None:
        for work in [comm.all_reduce(part, out=part, wire=wire, async_op=True) for part in parts]:
            work.wait()

    return exchange


def _horovod_exchange(hvd: Any, workload: Workload, sizes: Sequence[int]) -> Callable[[], None]:
    parts = _parts(workload.scratch, sizes)

    def exchange() -> None:
        handles = [
            hvd.allreduce_async_(part, name=f"exchange.{number}", op=hvd.Sum)
            for number, part in enumerate(parts)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    return exchange


def _slipstream_buckets(shapes: Sequence[torch.Size]) -> list[int]:
    """Bytes of the buckets that slipstream's own optimizer cuts gradients into, in this order."""
    parameters = [Parameter(number, shape.numel(), DType.F32) for number, shape in enumerate(shapes)]
    return [sum(parameter.nbytes for parameter in part) for part in cut(parameters)]


def _group(name: str, nbytes: int) -> Any:
    """The process group of a backend; the default group is slipstream's, and made first.

    ``nbytes``: of a bucket, for which the ring's chunks are chosen.
    """
    if not dist.is_initialized():
        _join()
    if name == "slipstream":
        return dist.group.WORLD
    group: Any = dist.new_group(backend="slipstream" if name == RING else name)
    if name == RING:
        members: Group = group.members
        members.use("all_reduce", "ring", choose("all_reduce", nbytes, members.topology).chunk_bytes)
    return group


def _join() -> None:
    """Makes the default group, through a store whose address rank 0 tells the others by slipstream."""
    settings = Settings.from_environment()
    one_host = comm.local_size() == comm.size() and settings.interface is None
    address = "127.0.0.1" if one_host else advertised_addresses(settings.interface)[0]
    _choose_interface(address)
    place = np.zeros(256, np.uint8)
    store = None
    if comm.rank() == 0:
        # Port 0: the system chooses a free one.
        store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        text = f"{address} {store.port}".encode()
        place[: len(text)] = np.frombuffer(text, np.uint8)
    host, port = bytes(comm.broadcast(place)).rstrip(b"\0").decode().split()
    store = store or dist.TCPStore(host, int(port), is_master=False)  # type: ignore[attr-defined]
    dist.init_process_group("slipstream", store=store, rank=comm.rank(), world_size=comm.size())


def _choose_interface(address: str) -> None:
    """Gloo and NCCL use the interface that slipstream uses, unless they were told another."""
    for one in interfaces():
        if address in one.ipv4 + one.ipv6:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", one.name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", one.name)


def reducers() -> list[dict[str, Any]]:
    """What this rank's process groups know of each reducer of their job: its ``name``, whether it is ``used``."""
    group: Any = dist.group.WORLD if dist.is_initialized() else None
    world = job.current() if group is None else group.members.job
    return world.reducers.states()


def leave() -> None:
    """Ends the process groups that `build` has made; every rank calls it."""
    if dist.is_initialized():
        dist.destroy_process_group()
