"""How the operations of `horovod.torch` start: at once without a name, else when all ranks have called them.

Each function checks the arguments of this rank; `requests` says what the ranks compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from slipstream.comm.collectives.interruption import Together
from slipstream.faces.horovod.handles import Grouped, Named, PendingResult, start
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.torch.data_movement import (
    check_splits,
    number_of_root,
    start_all_gather,
    start_all_to_all,
    start_broadcast,
    start_grouped_all_gather,
)
from slipstream.faces.torch.reduction_collectives import (
    check_rows,
    start_all_reduce,
    start_grouped_all_reduce,
    start_reduce_scatter,
)
from slipstream.faces.torch.requests import (
    broadcast_request,
    grouped_request,
    rows_request,
    shares_request,
    sum_request,
)
from slipstream.faces.torch.sum_parts import SumPart
from slipstream.faces.torch_tensors import check_dense

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "grouped_all_gather",
    "grouped_all_reduce",
    "grouped_reduce_scatter",
    "part_name",
    "reduce_scatter",
]


def all_reduce(
    tensor: torch.Tensor,
    in_place: bool,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    sync: bool = False,
) -> PendingResult | Named:
    """An all-reduce of one tensor: see `start_all_reduce`."""
    if name is None:
        return start_all_reduce(tensor, in_place, None, op, prescale, postscale, process_set, sync)
    check_dense(tensor)
    return start(
        name,
        process_set,
        lambda text: sum_request(text, tensor.dtype, tensor.shape, op, prescale, postscale),
        lambda own: start_all_reduce(tensor, in_place, name, op, prescale, postscale, own),
        lambda: SumPart(tensor, in_place),
        sync,
    )


def grouped_all_reduce(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Grouped | Named:
    """An all-reduce of several tensors: see `start_grouped_all_reduce`."""
    return start(
        name,
        process_set,
        lambda text: grouped_request(text, tensors, op, prescale, postscale),
        lambda own: start_grouped_all_reduce(tensors, in_place, name, op, prescale, postscale, own),
    )


def reduce_scatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    sync: bool = False,
) -> PendingResult | Named:
    """A reduce-scatter of one tensor: see `start_reduce_scatter`."""
    check_rows(tensor)
    return start(
        name,
        process_set,
        lambda text: shares_request(text, tensor, op, prescale, postscale),
        lambda own: start_reduce_scatter(
            tensor, name, op, prescale, postscale, own, sync=sync and name is None
        ),
        sync=sync,
    )


def grouped_reduce_scatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Grouped:
    """A reduce-scatter of each tensor."""
    for tensor in tensors:
        check_rows(tensor)
    with Together(process_set.group, "grouped_reducescatter"):
        return Grouped(
            [
                reduce_scatter(tensor, part_name(name, i), op, prescale, postscale, process_set)
                for i, tensor in enumerate(tensors)
            ]
        )


def all_gather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> PendingResult | Named:
    """An all-gather of one tensor: see `start_all_gather`."""
    return start(
        name,
        process_set,
        lambda text: rows_request("allgather", text, tensor),
        lambda own: start_all_gather(tensor, name, own),
    )


def grouped_all_gather(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet) -> Grouped:
    """An all-gather of each tensor; without a name with one exchange of their sizes (`start_grouped_all_gather`)."""
    if name is None:
        return start_grouped_all_gather(tensors, None, process_set)
    with Together(process_set.group, "grouped_allgather"):
        return Grouped(
            [all_gather(tensor, part_name(name, i), process_set) for i, tensor in enumerate(tensors)]
        )


def part_name(name: str | None, number: int) -> str | None:
    """The name of a tensor of a grouped operation that runs tensor by tensor."""
    return None if name is None else f"{name}.{number}"


def broadcast(
    tensor: torch.Tensor,
    in_place: bool,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    sync: bool = False,
) -> PendingResult | Named:
    """A broadcast: see `start_broadcast`."""
    if name is None:
        return start_broadcast(tensor, in_place, root_rank, None, process_set, sync)
    number_of_root(root_rank, process_set)
    return start(
        name,
        process_set,
        lambda text: broadcast_request(text, tensor, root_rank),
        lambda own: start_broadcast(tensor, in_place, root_rank, name, own),
        sync=sync,
    )


def all_to_all(
    tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet, alone: bool = False
) -> Grouped | Named:
    """An all-to-all: see `start_all_to_all`."""
    check_splits(tensor, splits, process_set.group.size)
    if name is not None and splits is not None:  # they are read again when all ranks have called it
        splits = splits.clone() if isinstance(splits, torch.Tensor) else list(splits)
    return start(
        name,
        process_set,
        lambda text: rows_request("alltoall", text, tensor),
        lambda own: start_all_to_all(tensor, splits, name, own, alone),
    )
