"""The operations of `horovod.torch` that reduce, synchronous and asynchronous, with autograd where Horovod has it.

Every asynchronous operation returns an integer handle for `poll` and `synchronize`. In every operation
``name`` is optional, and at any time only one operation of a kind may use a name (ValueError).
``process_set`` limits an operation to some ranks; calling it on others is a ValueError.

Operations start when all ranks of the set have called them. Ranks may call those with a name in whatever order; the
n-th call without a name on one rank belongs to the n-th on the others. Where ranks differ in shape, dtype, operation,
wire or kind of device, every rank raises Mismatch (a RuntimeError), and the job goes on.
Tensors may have any dtype the engine knows, any strides, and may lie on another device: then they are copied to
the host and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from slipstream.comm.collectives.wires import wire_of_job
from slipstream.faces.horovod.handles import give
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average, choose_op
from slipstream.faces.torch import starting
from slipstream.faces.torch.autograd import AllReduce, GroupedAllReduce, GroupedReduceScatter, ReduceScatter
from slipstream.faces.torch.compression import AnyCompression, Compression
from slipstream.faces.torch.operation_arguments import (
    compressed,
    of_a_tensor,
    of_tensors,
    wire_alone,
    wire_for,
)
from slipstream.faces.torch.sparse import sparse_sum

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
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


@of_a_tensor
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompression = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks; returns a new one of its shape and dtype.

    ``tensor``: the same shape and dtype on all ranks, any strides, any device. ``op``: Average (the default;
    integers truncate toward zero), Sum, Min, Max, Product, or Adasum for floating-point tensors
    (docs/migrating.md); ``average`` is its deprecated forerunner.
    ``name``: what errors and the timeline call the operation. ``compression``: what travels, see `Compression`, the
    same on all ranks. Wires (f8, int8, ``wire``) act between hosts on Average and Sum of float32 tensors of 64 KiB and
    more; all other tensors travel exactly then. none is the job's wire (SLIPSTREAM_WIRE), exact is no wire.
    ``prescale_factor``, ``postscale_factor``: factors of what goes in and of what comes out, the same on all
    ranks. Integers are truncated after each factor, so ``prescale_factor=0.5`` makes 0 of a 1 on every
    rank, before the sum, and end at the limits of their type. (64 bits of a product count where the integers have as
    many: 20 times 0.7, which is a little less than 14, becomes 13.) Factors of floating-point tensors below float64
    are float32, and each product is rounded to the tensor's dtype. ``process_set``: the ranks that take part.
    Differentiable for Average and Sum. Raises TypeError or ValueError for arguments that do not fit, Mismatch if
    the ranks' shapes, dtypes, operations or wires differ, another SlipstreamError if the operation fails.

    >>> hvd.allreduce(torch.tensor([1.0, 2.0]) * (hvd.rank() + 1))
    tensor([1.5000, 3.0000])
    """
    op = choose_op(op, average)
    if compression is Compression.none and not tensor.requires_grad:
        wire = wire_of_job(process_set.group)
        pending = starting.all_reduce(
            tensor, False, name, op, prescale_factor, postscale_factor, process_set, wire, sync=True
        )
        return pending.wait()  # type: ignore[no-any-return]
    small, ctx = compressed(tensor, "allreduce", compression, process_set)
    wire = wire_for(compression, process_set)
    result = AllReduce.apply(  # type: ignore[no-untyped-call]
        small, name, op, prescale_factor, postscale_factor, process_set, wire
    )
    return compression.decompress(result, ctx)


@of_a_tensor
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> int:
    """Starts `allreduce`, with its arguments. Returns a handle (an int) for `poll` and `synchronize`, which returns the
    result. ``compression``: none, exact or a wire; ValueError for those that make a tensor of their own.

    The tensor must not change until the handle is synchronised. Errors of the arguments are raised here,
    those of the operation by `synchronize`.

    >>> hvd.synchronize(hvd.allreduce_async(torch.ones(2), op=hvd.Sum))
    tensor([2., 2.])
    """
    op = choose_op(op, average)
    wire = wire_alone(compression, "allreduce_async", process_set)
    return give(
        starting.all_reduce(tensor, False, name, op, prescale_factor, postscale_factor, process_set, wire)
    )


@of_a_tensor
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> torch.Tensor:
    """Reduces a tensor over all ranks, in place; returns it. Arguments and errors are those of `allreduce_async`.

    Not differentiable.

    >>> hvd.allreduce_(torch.ones(2), op=hvd.Sum)
    tensor([2., 2.])
    """
    op = choose_op(op, average)
    wire = wire_alone(compression, "allreduce_", process_set)
    pending = starting.all_reduce(
        tensor, True, name, op, prescale_factor, postscale_factor, process_set, wire, sync=True
    )
    return pending.wait()  # type: ignore[no-any-return]


@of_a_tensor
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> int:
    """Starts `allreduce_`. Returns a handle for `poll` and `synchronize`, as `allreduce_async` does.

    >>> hvd.synchronize(hvd.allreduce_async_(torch.ones(2), op=hvd.Sum))
    tensor([2., 2.])
    """
    op = choose_op(op, average)
    wire = wire_alone(compression, "allreduce_async_", process_set)
    return give(
        starting.all_reduce(tensor, True, name, op, prescale_factor, postscale_factor, process_set, wire)
    )


@of_tensors
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompression = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors in one operation; returns the list of results, in order.

    ``tensors``: any shapes and dtypes, on every rank the same ones in the same order. Otherwise as
    `allreduce`.

    >>> hvd.grouped_allreduce([torch.ones(2), torch.zeros(1)], op=hvd.Sum)
    [tensor([2., 2.]), tensor([0.])]
    """
    op = choose_op(op, average)
    small = [compressed(tensor, "grouped_allreduce", compression, process_set) for tensor in tensors]
    wire = wire_for(compression, process_set)
    results = GroupedAllReduce.apply(  # type: ignore[no-untyped-call]
        name, op, prescale_factor, postscale_factor, process_set, wire, *(tensor for tensor, _ in small)
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, small, strict=True)]


@of_tensors
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> int:
    """Starts `grouped_allreduce`. Returns one handle for all tensors, as `allreduce_async` does.

    >>> hvd.synchronize(hvd.grouped_allreduce_async([torch.ones(1)], op=hvd.Sum))
    [tensor([2.])]
    """
    op = choose_op(op, average)
    wire = wire_alone(compression, "grouped_allreduce_async", process_set)
    return give(
        starting.grouped_all_reduce(
            tensors, False, name, op, prescale_factor, postscale_factor, process_set, wire
        )
    )


@of_tensors
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> list[torch.Tensor]:
    """Reduces several tensors in one operation, in place; returns the list of them. Otherwise as
    `grouped_allreduce`.

    >>> hvd.grouped_allreduce_([torch.ones(1)], op=hvd.Sum)
    [tensor([2.])]
    """
    op = choose_op(op, average)
    wire = wire_alone(compression, "grouped_allreduce_", process_set)
    grouped = starting.grouped_all_reduce(
        tensors, True, name, op, prescale_factor, postscale_factor, process_set, wire
    )
    return grouped.wait()  # type: ignore[no-any-return]


@of_tensors
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: AnyCompression = Compression.none,
) -> int:
    """Starts `grouped_allreduce_`. Returns one handle for all tensors, as `allreduce_async` does.

    >>> hvd.synchronize(hvd.grouped_allreduce_async_([torch.ones(1)], op=hvd.Sum))
    [tensor([2.])]
    """
    op = choose_op(op, average)
    wire = wire_alone(compression, "grouped_allreduce_async_", process_set)
    return give(
        starting.grouped_all_reduce(
            tensors, True, name, op, prescale_factor, postscale_factor, process_set, wire
        )
    )


@of_a_tensor
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts the Sum or Average of a sparse COO tensor; returns a function that waits for the sparse result.

    ``tensor``: the same shape and dtype on all ranks, any number of indices on each. Indices and values are
    gathered, and values with equal indices are added. ``name``: as for `allreduce`. Raises ValueError for another
    ``op``; the function raises Mismatch if the ranks' shapes, dtypes or operations differ, another SlipstreamError if
    the operation fails.

    >>> x = torch.sparse_coo_tensor([[hvd.rank()]], [1.0], (3,))
    >>> hvd.sparse_allreduce_async(x, "x", hvd.Sum)().to_dense()
    tensor([1., 1., 0.])
    """
    return sparse_sum(
        tensor,
        op,
        process_set,
        lambda sparse, rows: starting.sparse_all_reduce(sparse, rows, name, op, process_set),
    )


@of_a_tensor
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: AnyCompression = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks; returns this rank's share of the rows, in the order of the ranks.

    ``tensor``: the same shape and dtype on all ranks. The rows (dim 0) are shared out evenly; if that does
    not come out even, the first ranks get one row more. The other arguments are those of `allreduce`.
    Differentiable for Average and Sum. Raises ValueError for 0-dim tensors, else what `allreduce` raises.

    >>> hvd.reducescatter(torch.arange(4.0), op=hvd.Sum)  # on rank 0
    tensor([0., 2.])
    """
    small, ctx = compressed(tensor, "reducescatter", compression, process_set)
    wire = wire_for(compression, process_set)
    if tensor.requires_grad:
        result = ReduceScatter.apply(  # type: ignore[no-untyped-call]
            small, name, op, prescale_factor, postscale_factor, process_set, wire
        )
    else:
        result = starting.reduce_scatter(
            small, name, op, prescale_factor, postscale_factor, process_set, wire, sync=True
        ).wait()
    return compression.decompress(result, ctx)


@of_a_tensor
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: AnyCompression = Compression.none,
) -> int:
    """Starts `reducescatter`. Returns a handle for `poll` and `synchronize`, as `allreduce_async` does.

    >>> hvd.synchronize(hvd.reducescatter_async(torch.arange(4.0), op=hvd.Sum))  # on rank 0
    tensor([0., 2.])
    """
    wire = wire_alone(compression, "reducescatter_async", process_set)
    return give(
        starting.reduce_scatter(tensor, name, op, prescale_factor, postscale_factor, process_set, wire)
    )


@of_tensors
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: AnyCompression = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Runs `reducescatter` for several tensors in one operation; returns the list of results, in order.

    >>> hvd.grouped_reducescatter([torch.arange(2.0)], op=hvd.Sum)  # on rank 0
    [tensor([0.])]
    """
    small = [compressed(tensor, "grouped_reducescatter", compression, process_set) for tensor in tensors]
    travelling = [tensor for tensor, _ in small]
    wire = wire_for(compression, process_set)
    if any(tensor.requires_grad for tensor in tensors):
        results = GroupedReduceScatter.apply(  # type: ignore[no-untyped-call]
            name, op, prescale_factor, postscale_factor, process_set, wire, *travelling
        )
    else:
        results = starting.grouped_reduce_scatter(
            travelling, name, op, prescale_factor, postscale_factor, process_set, wire
        ).wait()
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, small, strict=True)]


@of_tensors
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: AnyCompression = Compression.none,
) -> int:
    """Starts `grouped_reducescatter`. Returns one handle for all tensors, as `allreduce_async` does.

    >>> hvd.synchronize(hvd.grouped_reducescatter_async([torch.arange(2.0)], op=hvd.Sum))  # on rank 0
    [tensor([0.])]
    """
    wire = wire_alone(compression, "grouped_reducescatter_async", process_set)
    return give(
        starting.grouped_reduce_scatter(
            tensors, name, op, prescale_factor, postscale_factor, process_set, wire
        )
    )
