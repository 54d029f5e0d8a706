"""The operations of `horovod.torch` that only move data, synchronous and asynchronous.

What `reduction_operations` says of names, process sets, order and devices holds of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from slipstream.faces.horovod.handles import give
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.torch import starting
from slipstream.faces.torch.autograd import AllToAll, Broadcast, GroupedAllGather
from slipstream.faces.torch.operation_arguments import of_a_tensor, of_tensors, whole_call

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
]


@of_a_tensor
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along dim 0, in the order of the ranks; returns a new tensor.

    ``tensor``: the same dtype on all ranks, and the same shape but for dim 0; a 0-dim tensor counts as one
    row. ``name``: what errors and the timeline call the operation. ``process_set``: the ranks that take part.
    Differentiable: each rank gets the average over the ranks of the gradient of its rows. Raises TypeError
    for what is no tensor, Mismatch if the ranks' shapes or dtypes differ, another SlipstreamError if the
    operation fails.

    >>> hvd.allgather(torch.tensor([hvd.rank()]))
    tensor([0, 1])
    """
    if tensor.requires_grad:
        return GroupedAllGather.apply(name, process_set, tensor)[0]  # type: ignore[no-untyped-call, no-any-return]
    return starting.all_gather(tensor, name, process_set).wait()  # type: ignore[no-any-return]


@of_a_tensor
def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `allgather`. Returns a handle for `poll` and `synchronize`, as `allreduce_async` does.

    >>> hvd.synchronize(hvd.allgather_async(torch.tensor([hvd.rank()])))
    tensor([0, 1])
    """
    return give(starting.all_gather(tensor, name, process_set))


@of_tensors
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Runs `allgather` for several tensors in one operation; returns the list of results, in order.

    >>> hvd.grouped_allgather([torch.tensor([hvd.rank()])])
    [tensor([0, 1])]
    """
    if any(tensor.requires_grad for tensor in tensors):
        return list(GroupedAllGather.apply(name, process_set, *tensors))  # type: ignore[no-untyped-call]
    return starting.grouped_all_gather(tensors, name, process_set).wait()  # type: ignore[no-any-return]


@of_tensors
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `grouped_allgather`. Returns one handle for all tensors, as `allgather_async` does.

    >>> hvd.synchronize(hvd.grouped_allgather_async([torch.tensor([hvd.rank()])]))
    [tensor([0, 1])]
    """
    return give(starting.grouped_all_gather(tensors, name, process_set))


@of_a_tensor
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns a new tensor with the values that ``tensor`` has on ``root_rank``.

    ``tensor``: the same shape and dtype on all ranks. ``root_rank``: its number in the job, also in a process
    set. ``name``: what errors and the timeline call the operation. ``process_set``: the ranks that take part.
    Differentiable: the root gets the average of the gradients. Raises ValueError if ``root_rank`` is not in
    the set, Mismatch if shapes or dtypes differ, another SlipstreamError if the operation fails.

    >>> hvd.broadcast(torch.tensor([hvd.rank()]), root_rank=1)
    tensor([1])
    """
    if tensor.requires_grad:
        return Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call, no-any-return]
    return starting.broadcast(tensor, False, root_rank, name, process_set, sync=True).wait()  # type: ignore[no-any-return]


@of_a_tensor
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `broadcast`. Returns a handle for `poll` and `synchronize`, as `allreduce_async` does.

    >>> hvd.synchronize(hvd.broadcast_async(torch.tensor([hvd.rank()]), root_rank=1))
    tensor([1])
    """
    return give(starting.broadcast(tensor, False, root_rank, name, process_set))


@of_a_tensor
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrites a tensor with the values that it has on ``root_rank``; returns it. Otherwise as `broadcast`.

    Not differentiable.

    >>> hvd.broadcast_(torch.tensor([hvd.rank()]), root_rank=1)
    tensor([1])
    """
    return starting.broadcast(tensor, True, root_rank, name, process_set, sync=True).wait()  # type: ignore[no-any-return]


@of_a_tensor
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `broadcast_`. Returns a handle for `poll` and `synchronize`, as `allreduce_async` does.

    >>> hvd.synchronize(hvd.broadcast_async_(torch.tensor([hvd.rank()]), root_rank=1))
    tensor([1])
    """
    return give(starting.broadcast(tensor, True, root_rank, name, process_set))


@of_a_tensor
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows to every rank and receives rows from every rank, in the order of the ranks.

    ``tensor``: the same dtype on all ranks, and the same shape but for dim 0. ``splits``: how many rows each
    rank gets; default: equal shares. Returns the received rows as one tensor, or with ``splits`` the pair
    (tensor, received splits: an int tensor of as many elements as there are ranks). Differentiable. Raises
    ValueError if the splits do not fit the rows, Mismatch if shapes or dtypes differ, another SlipstreamError
    if the operation fails.

    >>> hvd.alltoall(torch.arange(4) + 10 * hvd.rank())  # on rank 0
    tensor([ 0,  1, 10, 11])
    """
    if tensor.requires_grad:
        result, received = AllToAll.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    else:
        result, received = starting.all_to_all(tensor, splits, name, process_set).wait()
    return result if splits is None else (result, received)


@of_a_tensor
def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `alltoall`. Returns a handle for `poll` and `synchronize`, as `allreduce_async` does.

    >>> hvd.synchronize(hvd.alltoall_async(torch.arange(4)))  # on rank 0
    tensor([0, 1, 0, 1])
    """
    return give(starting.all_to_all(tensor, splits, name, process_set, alone=splits is None))


@whole_call
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it, or has joined. Raises SlipstreamError when a rank is lost.

    >>> hvd.barrier()
    """
    starting.barrier(process_set).wait()
