"""torch.distributed: gloo on the memory of the host, NCCL on that of the GPU.

The ranks meet at a TCPStore of rank 0; slipstream tells them where. gloo is bound to the interface that
slipstream uses: by itself it takes the one of the host's name, which may be loopback.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import slipstream
from slipstream.bench.collective.catalogue import COLLECTIVES
from slipstream.bench.collective.contenders.interface import Bound, Call, Contender, Place, Unsupported
from slipstream.bench.gathering import broadcast_object
from slipstream.comm.rendezvous.discovery import advertised_addresses, interfaces

__all__ = ["gloo_interface", "join_torch", "open_contender"]


def gloo_interface(place: Place) -> str:
    """The name of the interface that GLOO_SOCKET_IFNAME should have; "" when there is none to be found."""
    if place.one_host and place.interface is None:
        return next((one.name for one in interfaces() if one.loopback and one.up), "")
    address = advertised_addresses(place.interface)[0]
    return next((one.name for one in interfaces() if address in one.ipv4 + one.ipv6), "")


def join_torch(place: Place) -> Any:
    """Makes gloo's group of all ranks PyTorch's default one, once; returns ``torch.distributed``."""
    distributed: Any = importlib.import_module("torch.distributed")
    if distributed.is_initialized():
        return distributed
    if "GLOO_SOCKET_IFNAME" not in os.environ and gloo_interface(place):
        os.environ["GLOO_SOCKET_IFNAME"] = gloo_interface(place)
    where: list[Any] = []
    served = None
    if place.rank == 0:
        host = "127.0.0.1" if place.one_host else advertised_addresses(place.interface)[0]
        served = distributed.TCPStore(host, 0, place.size, True, wait_for_workers=False)
        where = [host, served.port]
    host, port = broadcast_object(where)
    store = served or distributed.TCPStore(host, port, place.size, False)
    distributed.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size)
    return distributed


def open_contender(name: str, place: Place) -> Contender:
    """``gloo`` or ``nccl``."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    if name == "nccl" and not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        raise ImportError("this PyTorch has no CUDA or NCCL, or sees no GPU")
    distributed = join_torch(place)
    versions = {"torch": torch.__version__}
    if name == "gloo":
        group = distributed.group.WORLD

        def bind(call: Call) -> Bound:
            source, target = _tensors(torch, call)
            return Bound(_call(distributed, group, call, source, target, place))

    else:
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
        group = distributed.new_group(backend="nccl")
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))

        def bind(call: Call) -> Bound:
            return _on_gpu(torch, distributed, group, call, place)

    def close() -> None:
        if distributed.is_initialized():
            slipstream.barrier()  # rank 0 serves the store that the others still use
            distributed.destroy_process_group()

    return Contender(name, bind, close=close, versions=versions)


def _tensors(torch: Any, call: Call) -> tuple[Any, Any]:
    """Source and target as tensors that share the arrays' memory; in place, one tensor twice."""

    def tensor(array: np.ndarray[Any, Any]) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    source = tensor(call.source)
    return source, source if call.in_place else tensor(call.target)


def _on_gpu(torch: Any, distributed: Any, group: Any, call: Call, place: Place) -> Bound:
    source, target = _tensors(torch, call)
    there = source.cuda()
    result = there if call.in_place else target.cuda()
    run = _call(distributed, group, call, there, result, place)

    def timed() -> None:
        run()
        torch.cuda.synchronize()

    def before() -> None:
        there.copy_(source)
        result.copy_(target)
        torch.cuda.synchronize()

    return Bound(timed, before, lambda: target.copy_(result))


def _call(
    distributed: Any, group: Any, call: Call, source: Any, target: Any, place: Place
) -> Callable[[], object]:
    op = getattr(distributed.ReduceOp, "PRODUCT" if call.op == "prod" else call.op.upper())
    root, is_root = call.root, place.rank == call.root
    after, before = (place.rank + 1) % place.size, (place.rank - 1) % place.size
    if call.op == "avg" and COLLECTIVES[call.name].reduces and distributed.get_backend(group) == "gloo":
        raise Unsupported("gloo has no avg")

    # Newer PyTorch has new names, and warns of the old ones.
    reduce_scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
    all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor

    def send_recv() -> None:
        sending = distributed.isend(source, after, group=group)
        distributed.recv(target, before, group=group)
        sending.wait()

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: distributed.all_reduce(target, op, group=group),
        "reduce_scatter": lambda: reduce_scatter(target, source, op, group=group),
        "all_gather": lambda: all_gather(target, source, group=group),
        "broadcast": lambda: distributed.broadcast(target, root, group=group),
        "reduce": lambda: distributed.reduce(target, root, op, group=group),
        "gather": lambda: distributed.gather(source, parts, root, group=group),
        "scatter": lambda: distributed.scatter(target, parts, root, group=group),
        "all_to_all": lambda: distributed.all_to_all_single(target, source, group=group),
        "send_recv": send_recv,
        "barrier": lambda: distributed.barrier(group=group),
    }
    parts = None
    if is_root and call.name in ("gather", "scatter"):
        parts = list((target if call.name == "gather" else source).chunk(place.size))
    return calls[call.name]
