"""Horovod's operations on MXNet's arrays.

Each waits until MXNet has computed what it reads, and returns when it is done. So all ranks call them in one order.
``name`` is what errors and the timeline call an operation, and is compared. ``priority`` is accepted and changes
nothing.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import mxnet
import numpy as np

from slipstream.base.dtypes import to_numpy
from slipstream.comm.collectives import addresses, arrays
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average, choose_op, engine_op
from slipstream.faces.mxnet.memory import Memory, new

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
    "reducescatter_",
    "start_allreduce",
]


def start_allreduce(
    tensor: Any, in_place: bool, op: int, name: str | None, prescale: float, postscale: float, group: Group
) -> tuple[Work, Any]:
    """Starts one; the result is ``tensor`` itself or a new array, and whole when the work is done."""
    source = Memory(tensor, writes=in_place)
    target = source if in_place else new(source.shape, tensor)
    work = addresses.all_reduce(
        group,
        source.address,
        target.address,
        source.count,
        source.dtype,
        engine_op(op),
        name=name,
        shape=source.shape,
        prescale=prescale,
        postscale=postscale,
        keep=(source, target),
    )
    return work, target.array


def _all_reduce(
    tensors: Sequence[Any],
    in_place: bool,
    average: bool | None,
    name: str | None,
    scales: tuple[float, float],
    process_set: ProcessSet,
    op: int | None,
) -> list[Any]:
    group = process_set.group
    chosen = choose_op(op, average)
    names = [name if name is None or len(tensors) == 1 else f"{name}.{i}" for i in range(len(tensors))]
    with Together(group, "allreduce"):
        started = [
            start_allreduce(tensor, in_place, chosen, label, *scales, group)
            for tensor, label in zip(tensors, names, strict=True)
        ]
        for work, _ in started:
            work.wait()
    return [result for _, result in started]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Returns the reduction of all ranks' ``tensor`` as a new array: the average, the sum (average=False), or ``op``.

    Shapes and types are the same on all ranks, else Mismatch is raised; TypeError for arrays that are sparse or not in
    the CPU's memory. ``prescale_factor``, ``postscale_factor``: factors before and after the sum.
    """
    return _all_reduce([tensor], False, average, name, (prescale_factor, postscale_factor), process_set, op)[
        0
    ]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """As `allreduce`, but the result is in ``tensor``, which is returned."""
    return _all_reduce([tensor], True, average, name, (prescale_factor, postscale_factor), process_set, op)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """`allreduce` of several arrays, which are under way together; returns the list of the results."""
    return _all_reduce(tensors, False, average, name, (prescale_factor, postscale_factor), process_set, op)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """As `grouped_allreduce`, in place."""
    return _all_reduce(tensors, True, average, name, (prescale_factor, postscale_factor), process_set, op)


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns all ranks' ``tensor`` as one array, joined along the first dimension, in which they may differ."""
    source = Memory(tensor)
    rows = arrays.all_gather(_view(source), group=process_set.group, name=name)
    return _as_mxnet(rows, tensor)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allgather` of several arrays; returns the list of the results."""
    return [
        allgather(tensor, name and f"{name}.{i}", process_set=process_set) for i, tensor in enumerate(tensors)
    ]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the ``tensor`` of ``root_rank`` (its number in the job) as a new array, on all ranks."""
    source = Memory(tensor)
    return _broadcast(source, new(source.shape, tensor), root_rank, name, process_set)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As `broadcast`, but ``tensor`` itself gets the values, and is returned."""
    memory = Memory(tensor, writes=True)
    return _broadcast(memory, memory, root_rank, name, process_set)


def _broadcast(
    source: Memory, target: Memory, root_rank: int, name: str | None, process_set: ProcessSet
) -> Any:
    group = process_set.group
    if root_rank not in group.ranks:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks {list(group.ranks)}")
    memory = source.address, target.address, source.count, source.dtype
    root = group.ranks.index(root_rank)
    with Together(group, "broadcast"):
        addresses.broadcast(
            group, *memory, root, name=name, shape=source.shape, keep=(source, target), sync=True
        )
    return target.array


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends ``splits[r]`` rows of ``tensor`` to rank r, by default equally many; returns what comes, in order of rank.

    With ``splits`` (a list or an array of integers) it returns a pair: what comes, and how many rows from each rank.
    """
    group = process_set.group
    source = Memory(tensor)
    counts = None if splits is None else [int(n) for n in np.asarray(_as_numpy(splits)).ravel()]
    if counts is not None and (len(counts) != group.size or sum(counts) != source.shape[0]):
        raise ValueError(
            f"splits {counts} must have {group.size} entries, whose sum is {source.shape[0]}, the tensor's rows"
        )
    found = arrays.all_to_all(_view(source), splits=counts, group=group, name=name)
    rows = _as_mxnet(found, tensor)
    if counts is None:
        return rows
    received = arrays.all_to_all(np.array(counts, dtype=np.int32), group=group)
    return rows, mxnet.nd.array(received, dtype="int32")


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces ``tensor`` over the ranks and returns this rank's rows of it; the first ranks get one row more."""
    source = Memory(tensor)
    group = process_set.group
    if not source.shape:
        raise ValueError("reducescatter needs an array with at least one dimension")
    whole, more = divmod(source.shape[0], group.size)
    rows = [whole + (rank < more) for rank in range(group.size)]
    width = math.prod(source.shape[1:])
    target = new((rows[group.rank], *source.shape[1:]), tensor)
    with Together(group, "reducescatter"):
        addresses.reduce_scatter(
            group,
            source.address,
            target.address,
            [n * width for n in rows],
            source.dtype,
            engine_op(op),
            name=name,
            shape=source.shape,
            prescale=prescale_factor,
            postscale=postscale_factor,
            keep=(source, target),
            sync=True,
        )
    return target.array


def reducescatter_(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """As `reducescatter`. The result is a new array all the same: it has fewer rows than ``tensor``."""
    return reducescatter(tensor, *args, **kwargs)


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`reducescatter` of several arrays; returns the list of the results."""
    return [
        reducescatter(tensor, op, name and f"{name}.{i}", 0, prescale_factor, postscale_factor, process_set)
        for i, tensor in enumerate(tensors)
    ]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have called it."""
    arrays.barrier(group=process_set.group)


def _view(memory: Memory) -> np.ndarray[Any, Any]:
    """An array on the same memory, which lives as long as its owner is held elsewhere."""
    kind = np.dtype(to_numpy(memory.dtype))
    if memory.count == 0:
        return np.empty(memory.shape, kind)
    raw = (ctypes.c_byte * (memory.count * kind.itemsize)).from_address(memory.address)
    return np.frombuffer(raw, dtype=kind).reshape(memory.shape)


def _as_numpy(value: Any) -> Any:
    return value.asnumpy() if isinstance(value, mxnet.nd.NDArray) else value


def _as_mxnet(found: np.ndarray[Any, Any], like: Any) -> Any:
    return mxnet.nd.array(found, ctx=like.context, dtype=like.dtype)
