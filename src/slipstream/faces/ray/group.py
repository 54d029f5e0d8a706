"""A collective group of Ray's actors on slipstream, for `ray.util.collective`."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
from ray.util.collective.backend_registry import _global_registry, register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)

from slipstream import comm
from slipstream.base.dtypes import Op
from slipstream.faces.ray.meeting import enter

__all__ = ["SlipstreamGroup", "register"]

_NAME = "SLIPSTREAM"
_OPS = {
    ReduceOp.SUM: Op.SUM,
    ReduceOp.PRODUCT: Op.PROD,
    ReduceOp.MIN: Op.MIN,
    ReduceOp.MAX: Op.MAX,
}
_registering = threading.Lock()


class SlipstreamGroup(BaseGroup):  # type: ignore[misc]
    """What Ray makes in each actor of a group whose back end is "slipstream"; Ray calls its methods.

    Takes NumPy arrays and PyTorch's CPU tensors, which must be contiguous where a result is written into them. The
    group is a job of its own. If an actor is lost, the operations of all others raise PeerLost.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._job = enter(group_name, rank, world_size)
        self._group = self._job.world = comm.Group(job=self._job)

    @classmethod
    def backend(cls) -> str:
        """The name that Ray knows it by."""
        return _NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        """True: slipstream needs nothing that a host may lack."""
        return True

    def destroy_group(self) -> None:
        """Leaves the job."""
        self._job.close()

    def allreduce(self, tensor: list[Any], allreduce_options: Any = AllReduceOptions) -> None:
        """Reduces the tensor over the group, in place."""
        x = _one(tensor)
        comm.all_reduce(x, _OPS[allreduce_options.reduceOp], out=x, group=self._group)

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        """Waits for all actors of the group."""
        comm.barrier(group=self._group)

    def reduce(self, tensor: list[Any], reduce_options: Any = ReduceOptions) -> None:
        """Reduces the tensor into that of the root; the others' stay as they are."""
        x, root = _one(tensor), reduce_options.root_rank
        out = x if self._rank == root else None
        comm.reduce(x, root, _OPS[reduce_options.reduceOp], out=out, group=self._group)

    def broadcast(self, tensor: list[Any], broadcast_options: Any = BroadcastOptions) -> None:
        """Gives all actors the root's tensor, in place."""
        x = _one(tensor)
        comm.broadcast(x, broadcast_options.root_rank, out=x, group=self._group)

    def allgather(
        self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any = AllGatherOptions
    ) -> None:
        """Puts the tensor of each rank into its place in the list."""
        x = _one(tensor)
        gathered = comm.all_gather(x.reshape(1, *x.shape), group=self._group)
        for out, found in zip(_one(tensor_list), gathered, strict=True):
            _copy(found, out)

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        reducescatter_options: Any = ReduceScatterOptions,
    ) -> None:
        """The tensor becomes the reduction of those that the ranks have for this one in their lists."""
        parts = _one(tensor_list)
        if any(part.shape != parts[0].shape for part in parts):
            raise ValueError(
                f"the tensors to reduce have different shapes: {[tuple(p.shape) for p in parts]}"
            )
        stacked = np.stack([np.asarray(part) for part in parts])
        op = _OPS[reducescatter_options.reduceOp]
        _copy(comm.reduce_scatter(stacked, op, group=self._group)[0], _one(tensor))

    def send(self, tensor: list[Any], send_options: SendOptions) -> None:
        """Sends the tensor to another rank, which must receive it."""
        comm.send(_one(tensor), send_options.dst_rank, group=self._group)

    def recv(self, tensor: list[Any], recv_options: RecvOptions) -> None:
        """Receives into the tensor what another rank sends."""
        comm.recv(_one(tensor), recv_options.src_rank, group=self._group)


def register() -> None:
    """Makes ``backend="slipstream"`` known to Ray's collective groups in this process; again does nothing.

    The driver and every actor call it, or Ray does for all of them, if it is the set-up of its workers:

    >>> slipstream.ray.register()
    >>> ray.init(runtime_env={"worker_process_setup_hook": slipstream.ray.register})
    """
    with _registering:
        if not _global_registry.is_registered(_NAME):
            register_collective_backend(_NAME, SlipstreamGroup)


def _one(tensors: list[Any]) -> Any:
    """Ray has a list for the tensors of several GPUs of one actor."""
    if len(tensors) != 1:
        raise ValueError(f"slipstream takes one tensor of each actor, not {len(tensors)}")
    return tensors[0]


def _copy(found: Any, out: Any) -> None:
    """``out``: an array or a tensor; so may ``found`` be."""
    if tuple(found.shape) != tuple(out.shape):
        raise ValueError(f"the result has the shape {tuple(found.shape)}, not {tuple(out.shape)}")
    if isinstance(out, np.ndarray):
        np.copyto(out, np.asarray(found))
    else:
        target = cast(Any, out)
        target.copy_(
            found if hasattr(found, "device") and hasattr(found, "dim") else target.new_tensor(found)
        )
