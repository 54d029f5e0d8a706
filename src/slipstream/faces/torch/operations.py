"""The synchronous and asynchronous operations of `horovod.torch`, with autograd where Horovod has it.

Every asynchronous operation returns an integer handle for `poll` and `synchronize`. In every operation
``name`` is optional, and at any time only one operation of a kind may use a name (ValueError).
``process_set`` limits an operation to some ranks; calling it on others is a ValueError. All ranks of the set
must start the same operations in the same order; where they differ in shape, dtype or operation, every rank
raises Mismatch (a RuntimeError). Tensors may have any dtype the engine knows, any strides, and may lie on
another device: then they are copied to the host and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.interruption import Together, whole
from slipstream.comm.membership.group import world
from slipstream.faces.horovod.handles import Grouped, claim_name, give, synchronize, unclaim_name
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average, Sum, choose_op
from slipstream.faces.torch.autograd import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    GroupedAllReduce,
    ReduceScatter,
)
from slipstream.faces.torch.compression import Compression, Compressor
from slipstream.faces.torch.data_movement import (
    start_all_gather,
    start_all_to_all,
    start_broadcast,
    start_grouped_all_gather,
)
from slipstream.faces.torch.reduction_collectives import (
    start_all_reduce,
    start_grouped_all_reduce,
    start_reduce_scatter,
)
from slipstream.faces.torch_tensors import await_tensor

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
]

_whole = whole(lambda *_, **__: world())


def _expect(tensor: object, operation: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{operation} takes a torch.Tensor, not {type(tensor).__name__}")


def _expect_all(tensors: Iterable[torch.Tensor], operation: str) -> list[torch.Tensor]:
    found = list(tensors)
    for tensor in found:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{operation} takes a list of torch.Tensor, not of {type(tensor).__name__}")
    return found


def _compressed(
    tensor: torch.Tensor, name: str, compression: type[Compressor], process_set: ProcessSet
) -> tuple[torch.Tensor, Any]:
    """What travels, made when no earlier operation writes to the tensor any more."""
    if compression is not Compression.none:
        await_tensor(process_set.group, name, tensor, writes=False)
    return compression.compress(tensor)


@_whole
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks; returns a new one of its shape and dtype.

    ``op`` defaults to Average (integers truncate toward zero); ``average`` is its deprecated forerunner. The
    factors multiply what goes in and what comes out. Differentiable for Average and Sum.

    >>> hvd.allreduce(torch.tensor([1.0, 2.0]) * (hvd.rank() + 1))
    tensor([1.5000, 3.0000])
    """
    _expect(tensor, "allreduce")
    op = choose_op(op, average)
    if compression is Compression.none and not tensor.requires_grad:
        pending = start_all_reduce(
            tensor, False, name, op, prescale_factor, postscale_factor, process_set, sync=True
        )
        return pending.wait()  # type: ignore[no-any-return]
    small, ctx = _compressed(tensor, "allreduce", compression, process_set)
    result = AllReduce.apply(  # type: ignore[no-untyped-call]
        small, name, op, prescale_factor, postscale_factor, process_set
    )
    return compression.decompress(result, ctx)


@_whole
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `allreduce`. Returns a handle for `poll` and `synchronize`.

    The tensor must not change until the handle is synchronised.

    >>> hvd.synchronize(hvd.allreduce_async(torch.ones(2), op=hvd.Sum))
    tensor([2., 2.])
    """
    _expect(tensor, "allreduce_async")
    op = choose_op(op, average)
    return give(start_all_reduce(tensor, False, name, op, prescale_factor, postscale_factor, process_set))


@_whole
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks, in place; returns it. Not differentiable.

    >>> hvd.allreduce_(torch.ones(2), op=hvd.Sum)
    tensor([2., 2.])
    """
    _expect(tensor, "allreduce_")
    op = choose_op(op, average)
    pending = start_all_reduce(
        tensor, True, name, op, prescale_factor, postscale_factor, process_set, sync=True
    )
    return pending.wait()  # type: ignore[no-any-return]


@_whole
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `allreduce_`. Returns a handle for `poll` and `synchronize`.

    >>> hvd.synchronize(hvd.allreduce_async_(torch.ones(2), op=hvd.Sum))
    tensor([2., 2.])
    """
    _expect(tensor, "allreduce_async_")
    op = choose_op(op, average)
    return give(start_all_reduce(tensor, True, name, op, prescale_factor, postscale_factor, process_set))


@_whole
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors at once; returns the list of results. Otherwise as `allreduce`.

    >>> hvd.grouped_allreduce([torch.ones(2), torch.zeros(1)], op=hvd.Sum)
    [tensor([2., 2.]), tensor([0.])]
    """
    tensors = _expect_all(tensors, "grouped_allreduce")
    op = choose_op(op, average)
    small = [_compressed(tensor, "grouped_allreduce", compression, process_set) for tensor in tensors]
    results = GroupedAllReduce.apply(  # type: ignore[no-untyped-call]
        name, op, prescale_factor, postscale_factor, process_set, *(tensor for tensor, _ in small)
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, small, strict=True)]


@_whole
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `grouped_allreduce`. Returns one handle for all tensors.

    >>> hvd.synchronize(hvd.grouped_allreduce_async([torch.ones(1)], op=hvd.Sum))
    [tensor([2.])]
    """
    tensors = _expect_all(tensors, "grouped_allreduce_async")
    op = choose_op(op, average)
    return give(
        start_grouped_all_reduce(tensors, False, name, op, prescale_factor, postscale_factor, process_set)
    )


@_whole
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors at once, in place; returns the list of them.

    >>> hvd.grouped_allreduce_([torch.ones(1)], op=hvd.Sum)
    [tensor([2.])]
    """
    tensors = _expect_all(tensors, "grouped_allreduce_")
    op = choose_op(op, average)
    grouped = start_grouped_all_reduce(
        tensors, True, name, op, prescale_factor, postscale_factor, process_set
    )
    return grouped.wait()  # type: ignore[no-any-return]


@_whole
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `grouped_allreduce_`. Returns one handle for all tensors.

    >>> hvd.synchronize(hvd.grouped_allreduce_async_([torch.ones(1)], op=hvd.Sum))
    [tensor([2.])]
    """
    tensors = _expect_all(tensors, "grouped_allreduce_async_")
    op = choose_op(op, average)
    return give(
        start_grouped_all_reduce(tensors, True, name, op, prescale_factor, postscale_factor, process_set)
    )


@_whole
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts the Sum or Average of a sparse COO tensor; returns a function that waits for the sparse result.

    ``name`` is accepted for Horovod's sake. Indices and values are gathered, and those of equal place are
    added.

    >>> x = torch.sparse_coo_tensor([[hvd.rank()]], [1.0], (3,))
    >>> hvd.sparse_allreduce_async(x, "x", hvd.Sum)().to_dense()
    tensor([1., 1., 0.])
    """
    _expect(tensor, "sparse_allreduce_async")
    if op not in (Sum, Average):
        raise ValueError("sparse tensors can be reduced with Sum and Average only")
    sparse = tensor.detach().coalesce()
    started = start_grouped_all_gather([sparse.indices().t(), sparse.values()], None, process_set)
    shape = sparse.shape
    divisor = process_set.group.size if op == Average else 1

    def finish() -> torch.Tensor:
        indices, values = started.wait()
        if divisor > 1:
            values = values / divisor
        return torch.sparse_coo_tensor(indices.t(), values, shape).coalesce()

    return finish


@_whole
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along dim 0, in which they may differ; 0-dim tensors count as one
    row.

    Differentiable: each rank gets the average over the ranks of the gradient of its rows.

    >>> hvd.allgather(torch.tensor([hvd.rank()]))
    tensor([0, 1])
    """
    _expect(tensor, "allgather")
    if tensor.requires_grad:
        return AllGather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call, no-any-return]
    return start_all_gather(tensor, name, process_set).wait()  # type: ignore[no-any-return]


@_whole
def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `allgather`; returns when all ranks have started it, since it takes their sizes to begin.

    >>> hvd.synchronize(hvd.allgather_async(torch.tensor([hvd.rank()])))
    tensor([0, 1])
    """
    _expect(tensor, "allgather_async")
    return give(start_all_gather(tensor, name, process_set))


@_whole
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Runs `allgather` for several tensors; returns the list of results.

    >>> hvd.grouped_allgather([torch.tensor([hvd.rank()])])
    [tensor([0, 1])]
    """
    tensors = _expect_all(tensors, "grouped_allgather")
    if any(tensor.requires_grad for tensor in tensors):
        return [allgather(tensor, None, process_set) for tensor in tensors]
    return start_grouped_all_gather(tensors, name, process_set).wait()  # type: ignore[no-any-return]


@_whole
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `grouped_allgather`. Returns one handle for all tensors.

    >>> hvd.synchronize(hvd.grouped_allgather_async([torch.tensor([hvd.rank()])]))
    [tensor([0, 1])]
    """
    tensors = _expect_all(tensors, "grouped_allgather_async")
    return give(start_grouped_all_gather(tensors, name, process_set))


@_whole
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns a new tensor with the values of ``tensor`` on ``root_rank`` (its number in the job).

    ValueError when ``root_rank`` is not in the set. Differentiable: the root gets the average of the
    gradients.

    >>> hvd.broadcast(torch.tensor([hvd.rank()]), root_rank=1)
    tensor([1])
    """
    _expect(tensor, "broadcast")
    if tensor.requires_grad:
        return Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call, no-any-return]
    return start_broadcast(tensor, False, root_rank, name, process_set, sync=True).wait()  # type: ignore[no-any-return]


@_whole
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `broadcast`. Returns a handle for `poll` and `synchronize`.

    >>> hvd.synchronize(hvd.broadcast_async(torch.tensor([hvd.rank()]), root_rank=1))
    tensor([1])
    """
    _expect(tensor, "broadcast_async")
    return give(start_broadcast(tensor, False, root_rank, name, process_set))


@_whole
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrites a tensor with the values it has on ``root_rank``; returns it. Not differentiable.

    >>> hvd.broadcast_(torch.tensor([hvd.rank()]), root_rank=1)
    tensor([1])
    """
    _expect(tensor, "broadcast_")
    return start_broadcast(tensor, True, root_rank, name, process_set, sync=True).wait()  # type: ignore[no-any-return]


@_whole
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `broadcast_`. Returns a handle for `poll` and `synchronize`.

    >>> hvd.synchronize(hvd.broadcast_async_(torch.tensor([hvd.rank()]), root_rank=1))
    tensor([1])
    """
    _expect(tensor, "broadcast_async_")
    return give(start_broadcast(tensor, True, root_rank, name, process_set))


@_whole
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows to every rank and receives rows from every rank, in rank order.

    ``splits``: how many rows each rank gets, in order; default equal shares. Returns the tensor, or with
    ``splits`` the pair (tensor, received splits). ValueError when the splits do not fit. Differentiable.

    >>> hvd.alltoall(torch.arange(4) + 10 * hvd.rank())  # on rank 0
    tensor([ 0,  1, 10, 11])
    """
    _expect(tensor, "alltoall")
    if tensor.requires_grad:
        result, received = AllToAll.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    else:
        result, received = start_all_to_all(tensor, splits, name, process_set).wait()
    return result if splits is None else (result, received)


@_whole
def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `alltoall`, whose result `synchronize` returns; waits until all ranks have started it.

    >>> hvd.synchronize(hvd.alltoall_async(torch.arange(4)))  # on rank 0
    tensor([0, 1, 0, 1])
    """
    _expect(tensor, "alltoall_async")
    started = start_all_to_all(tensor, splits, name, process_set)
    if splits is None:
        pair = started.collect
        started.collect = lambda results: pair(results)[0]
    return give(started)


@_whole
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks and gives each an even share of the rows, the first ranks one more.

    ValueError for 0-dim tensors. Differentiable for Average and Sum.

    >>> hvd.reducescatter(torch.arange(4.0), op=hvd.Sum)  # on rank 0
    tensor([0., 2.])
    """
    _expect(tensor, "reducescatter")
    small, ctx = _compressed(tensor, "reducescatter", compression, process_set)
    if tensor.requires_grad:
        result = ReduceScatter.apply(  # type: ignore[no-untyped-call]
            small, name, op, prescale_factor, postscale_factor, process_set
        )
    else:
        result = start_reduce_scatter(
            small, name, op, prescale_factor, postscale_factor, process_set, sync=True
        ).wait()
    return compression.decompress(result, ctx)


@_whole
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts `reducescatter`. Returns a handle for `poll` and `synchronize`.

    >>> hvd.synchronize(hvd.reducescatter_async(torch.arange(4.0), op=hvd.Sum))  # on rank 0
    tensor([0., 2.])
    """
    _expect(tensor, "reducescatter_async")
    return give(start_reduce_scatter(tensor, name, op, prescale_factor, postscale_factor, process_set))


@_whole
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Runs `reducescatter` for several tensors; returns the list of results.

    >>> hvd.grouped_reducescatter([torch.arange(2.0)], op=hvd.Sum)  # on rank 0
    [tensor([0.])]
    """
    tensors = _expect_all(tensors, "grouped_reducescatter")
    if any(tensor.requires_grad for tensor in tensors):
        return [
            reducescatter(tensor, None, compression, op, process_set, prescale_factor, postscale_factor)
            for tensor in tensors
        ]
    small = [_compressed(tensor, "grouped_reducescatter", compression, process_set) for tensor in tensors]
    handle = grouped_reducescatter_async(
        [tensor for tensor, _ in small], name, op, process_set, prescale_factor, postscale_factor
    )
    results = synchronize(handle)
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, small, strict=True)]


@_whole
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts `grouped_reducescatter`. Returns one handle for all tensors.

    >>> hvd.synchronize(hvd.grouped_reducescatter_async([torch.arange(2.0)], op=hvd.Sum))  # on rank 0
    [tensor([0.])]
    """
    tensors = _expect_all(tensors, "grouped_reducescatter_async")
    key = None if name is None else claim_name("reducescatter", process_set.process_set_id, name)
    try:
        with Together(process_set.group, "grouped_reducescatter"):
            parts = [
                start_reduce_scatter(tensor, None, op, prescale_factor, postscale_factor, process_set)
                for tensor in tensors
            ]
    except BaseException:
        unclaim_name(key)
        raise
    return give(Grouped(parts, key))


@_whole
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it. Raises SlipstreamError when a rank is lost.

    >>> hvd.barrier()
    """
    addresses.barrier(process_set.group, sync=True)
