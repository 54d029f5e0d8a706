"""Gradients of the operations, by Horovod's rules.

Horovod's convention is that the gradient of a replicated result is the *average* over the ranks of what each
hands back, because ranks that train together each hold a mean loss. So the backward passes of allgather and
broadcast average; those of allreduce repeat their forward operation; alltoall's returns each row to where it
came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from slipstream.base.dtypes import WireType
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.reduce_ops import Average, Sum
from slipstream.faces.torch import starting

__all__ = [
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "GroupedAllGather",
    "GroupedAllReduce",
    "GroupedReduceScatter",
    "ReduceScatter",
]


def _linear(op: int) -> None:
    if op not in (Average, Sum):
        raise NotImplementedError(
            "gradients flow through Average and Sum only, not through Min, Max, Product or Adasum"
        )


class AllReduce(torch.autograd.Function):
    """All-reduce; its gradient is the all-reduce of the gradient, with the same operation, factors and wire."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        wire: WireType,
    ) -> torch.Tensor:
        """Returns the reduced tensor."""
        ctx.arguments = op, prescale, postscale, process_set, wire
        result: torch.Tensor = starting.all_reduce(
            tensor, False, name, op, prescale, postscale, process_set, wire, sync=True
        ).wait()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Returns the gradient of the tensor."""
        _linear(ctx.arguments[0])
        reduced = AllReduce.apply(grads[0], None, *ctx.arguments)  # type: ignore[no-untyped-call]
        return reduced, *[None] * 6


class GroupedAllReduce(torch.autograd.Function):
    """All-reduce of several tensors; gradients as for `AllReduce`."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        wire: WireType,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Returns the reduced tensors."""
        ctx.arguments = op, prescale, postscale, process_set, wire
        grouped = starting.grouped_all_reduce(tensors, False, name, *ctx.arguments)
        # Packed results are views of one buffer; autograd wants outputs that stand alone.
        return tuple(result.clone() if result._base is not None else result for result in grouped.wait())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Returns the gradients of the tensors."""
        _linear(ctx.arguments[0])
        reduced: Sequence[torch.Tensor]
        reduced = GroupedAllReduce.apply(None, *ctx.arguments, *grads)  # type: ignore[no-untyped-call]
        return *[None] * 6, *reduced


class GroupedAllGather(torch.autograd.Function):
    """All-gather of several tensors; gradients are the average of theirs, of which each rank takes its own rows."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Returns the gathered rows."""
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.process_set = process_set
        return tuple(starting.grouped_all_gather(tensors, name, process_set).wait())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Returns the gradients of this rank's rows."""
        process_set: ProcessSet = ctx.process_set
        reduced = starting.grouped_all_reduce(grads, False, None, Average, 1.0, 1.0, process_set).wait()
        rows = [shape[0] if shape else 1 for shape in ctx.shapes]
        everyone = starting.all_gather(torch.tensor([rows], device="cpu"), None, process_set).wait()
        starts = everyone[: process_set.group.rank].sum(0).tolist()
        mine = [
            one.narrow(0, start, count).reshape(shape)
            for one, start, count, shape in zip(reduced, starts, rows, ctx.shapes, strict=True)
        ]
        return None, None, *mine


class Broadcast(torch.autograd.Function):
    """Broadcast; its gradient is the average of the gradients on the root, zero elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        """Returns the root's tensor."""
        ctx.is_root = process_set.group.ranks[process_set.group.rank] == root_rank
        ctx.process_set = process_set
        result: torch.Tensor = starting.broadcast(
            tensor, False, root_rank, name, process_set, sync=True
        ).wait()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Returns the gradient of the tensor."""
        reduced = starting.all_reduce(
            grads[0], False, None, Average, 1.0, 1.0, ctx.process_set, sync=True
        ).wait()
        return (reduced if ctx.is_root else torch.zeros_like(reduced)), None, None, None


class AllToAll(torch.autograd.Function):
    """All-to-all; its gradient travels the same ways back."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the received rows, and how many came from each rank."""
        result, received = starting.all_to_all(tensor, splits, name, process_set).wait()
        ctx.received = received
        ctx.process_set = process_set
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Returns the gradient of the tensor."""
        back, _ = starting.all_to_all(grads[0], ctx.received, None, ctx.process_set).wait()
        return back, None, None, None


class ReduceScatter(torch.autograd.Function):
    """Reduce-scatter; its gradient is the all-gather of the gradients, times the number of ranks for Sum."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        wire: WireType,
    ) -> torch.Tensor:
        """Returns this rank's rows of the sum or average."""
        ctx.op = op
        ctx.factor = prescale * postscale
        ctx.process_set = process_set
        result: torch.Tensor = starting.reduce_scatter(
            tensor, name, op, prescale, postscale, process_set, wire, sync=True
        ).wait()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Returns the gradient of the tensor."""
        _linear(ctx.op)
        factor = ctx.factor * (ctx.process_set.group.size if ctx.op == Sum else 1)
        grad = grads[0] if factor == 1 else grads[0] * factor
        return starting.all_gather(grad, None, ctx.process_set).wait(), *[None] * 6


class GroupedReduceScatter(torch.autograd.Function):
    """Reduce-scatter of several tensors; gradients as for `ReduceScatter`."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        wire: WireType,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Returns this rank's rows of the sums or averages."""
        ctx.arguments = op, prescale * postscale, process_set
        started = starting.grouped_reduce_scatter(tensors, name, op, prescale, postscale, process_set, wire)
        return tuple(started.wait())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Returns the gradients of the tensors."""
        op, factor, process_set = ctx.arguments
        _linear(op)
        factor *= process_set.group.size if op == Sum else 1
        scaled = [grad if factor == 1 else grad * factor for grad in grads]
        return *[None] * 6, *starting.grouped_all_gather(scaled, None, process_set).wait()
