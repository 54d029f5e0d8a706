"""How the operations of `horovod.torch` start: when all ranks have called them.

Each function checks the arguments of this rank; `requests` says what the ranks compare. ``wire``: what is asked for
large float32 sums and averages to travel as between hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ctypes import c_float
from typing import Any

import torch

from slipstream.base.dtypes import WireType
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.negotiated import DONE
from slipstream.comm.negotiation.order import MOST_SHARED
from slipstream.faces.horovod.handles import Named, start
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.torch.data_movement import (
    check_splits,
    number_of_root,
    start_all_gather,
    start_all_to_all,
    start_broadcast,
    start_grouped_all_gather,
)
from slipstream.faces.torch.in_flight import Tensors
from slipstream.faces.torch.reduction_collectives import (
    check_rows,
    start_all_reduce,
    start_grouped_all_reduce,
    start_grouped_reduce_scatter,
    start_reduce_scatter,
)
from slipstream.faces.torch.requests import (
    BARRIER,
    broadcast_request,
    grouped_request,
    rows_request,
    shares_request,
    sparse_request,
    sum_request,
)
from slipstream.faces.torch.sum_parts import SumPart
from slipstream.faces.torch_tensors import check_dense

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "grouped_all_gather",
    "grouped_all_reduce",
    "grouped_reduce_scatter",
    "reduce_scatter",
    "sparse_all_reduce",
]


def all_reduce(
    tensor: torch.Tensor,
    in_place: bool,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
    sync: bool = False,
) -> Named:
    """An all-reduce of one tensor: see `start_all_reduce`."""
    check_dense(tensor)
    if prescale != 1.0 or postscale != 1.0:
        prescale, postscale = _factors([tensor], prescale, postscale)
    group = process_set.group
    own = sync and not name and _has_reducers(group, tensor.nbytes)
    return start(
        name,
        process_set,
        lambda text: sum_request(
            text, tensor.dtype, tensor.shape, tensor.device.type, op, prescale, postscale, wire, own
        ),
        lambda used: start_all_reduce(
            tensor, in_place, name, op, prescale, postscale, used, wire, sync=used is process_set
        ),
        lambda: SumPart(tensor, in_place),
        sync,
        Tensors([tensor], in_place),
    )


def grouped_all_reduce(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
) -> Named:
    """An all-reduce of several tensors: see `start_grouped_all_reduce`."""
    prescale, postscale = _factors(tensors, prescale, postscale)
    return start(
        name,
        process_set,
        lambda text: grouped_request(text, tensors, op, prescale, postscale, wire),
        lambda used: start_grouped_all_reduce(tensors, in_place, name, op, prescale, postscale, used, wire),
        memory=Tensors(tensors, in_place),
    )


def reduce_scatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
    sync: bool = False,
) -> Named:
    """A reduce-scatter of one tensor: see `start_reduce_scatter`."""
    check_rows(tensor)
    prescale, postscale = _factors([tensor], prescale, postscale)
    own = sync and not name and _has_reducers(process_set.group, tensor.nbytes)
    return start(
        name,
        process_set,
        lambda text: shares_request(text, [tensor], op, prescale, postscale, wire, own),
        lambda used: start_reduce_scatter(
            tensor, name, op, prescale, postscale, used, wire, sync=used is process_set
        ),
        sync=sync,
        memory=Tensors([tensor], False),
    )


def grouped_reduce_scatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
) -> Named:
    """A reduce-scatter of each tensor: see `start_grouped_reduce_scatter`."""
    for tensor in tensors:
        check_rows(tensor)
    prescale, postscale = _factors(tensors, prescale, postscale)
    return start(
        name,
        process_set,
        lambda text: shares_request(text, tensors, op, prescale, postscale, wire),
        lambda used: start_grouped_reduce_scatter(tensors, name, op, prescale, postscale, used, wire),
        memory=Tensors(tensors, False),
    )


def sparse_all_reduce(
    tensor: torch.Tensor, rows: Sequence[torch.Tensor], name: str | None, op: int, process_set: ProcessSet
) -> Named:
    """Gathers ``rows``, the indices and the values of a sparse tensor."""
    return start(
        name,
        process_set,
        lambda text: sparse_request(text, tensor, op),
        lambda used: start_grouped_all_gather(rows, name, used),
        memory=Tensors(rows, False),
    )


def all_gather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Named:
    """An all-gather of one tensor: see `start_all_gather`."""
    return start(
        name,
        process_set,
        lambda text: rows_request("allgather", text, [tensor]),
        lambda used: start_all_gather(tensor, name, used),
        memory=Tensors([tensor], False),
    )


def grouped_all_gather(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet) -> Named:
    """An all-gather of each tensor: see `start_grouped_all_gather`."""
    return start(
        name,
        process_set,
        lambda text: rows_request("allgather", text, tensors),
        lambda used: start_grouped_all_gather(tensors, name, used),
        memory=Tensors(tensors, False),
    )


def broadcast(
    tensor: torch.Tensor,
    in_place: bool,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    sync: bool = False,
) -> Named:
    """A broadcast: see `start_broadcast`."""
    number_of_root(root_rank, process_set)
    return start(
        name,
        process_set,
        lambda text: broadcast_request(text, tensor, root_rank),
        lambda used: start_broadcast(tensor, in_place, root_rank, name, used),
        sync=sync,
        memory=Tensors([tensor], in_place),
    )


def all_to_all(
    tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet, alone: bool = False
) -> Named:
    """An all-to-all: see `start_all_to_all`."""
    check_dense(tensor)
    check_splits(tensor, splits, process_set.group.size)
    if splits is not None:  # they are read again when all ranks have called it
        splits = splits.clone() if isinstance(splits, torch.Tensor) else list(splits)
    return start(
        name,
        process_set,
        lambda text: rows_request("alltoall", text, [tensor]),
        lambda used: start_all_to_all(tensor, splits, name, used, alone),
        memory=Tensors([tensor], False),
    )


def barrier(process_set: ProcessSet) -> Named:
    """That all ranks have called it is all there is to it."""
    return start(None, process_set, lambda _: BARRIER, lambda _: DONE, sync=True)


def _factors(tensors: Sequence[torch.Tensor], prescale: float, postscale: float) -> tuple[float, float]:
    """As Horovod has them: float32 if they are for numbers of at most that precision."""
    if (prescale == 1.0 and postscale == 1.0) or not all(
        tensor.is_floating_point() and tensor.element_size() <= 4 for tensor in tensors
    ):
        return prescale, postscale
    return c_float(prescale).value, c_float(postscale).value


def _has_reducers(group: Group, nbytes: int) -> bool:
    """Whether a call that waits may use the job's reducers.

    What these are given has to come in one order on all ranks. So it is the program that gives it to them, in its main
    thread, where the steps of optimizers come from, too.
    """
    return (
        nbytes > MOST_SHARED
        and group.job.reducers.for_choices(group) is not None
        and threading.current_thread() is threading.main_thread()
    )
