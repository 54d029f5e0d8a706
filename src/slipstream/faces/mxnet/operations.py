"""Horovod's operations on MXNet's arrays.

All ranks call them in one order. All-reduces and broadcasts return at once: MXNet's engine runs them (`pushes`), and
raises their errors for whoever waits for the result. The others wait until MXNet has computed what they read, and
return when they are done. Where ranks differ in shape, dtype, operation, factors or root, every rank gets Mismatch.
``name`` is what errors and the timeline call an operation, and is compared. ``priority`` is accepted and changes
nothing. Arguments that do not fit are a ValueError that is an MXNetError, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet
import numpy as np

from slipstream.base.arguments import as_number, check_int, check_text
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.interruption import whole
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group, world
from slipstream.faces.arrays import starting
from slipstream.faces.arrays.movement import number_of_root
from slipstream.faces.arrays.operands import Array
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Adasum, Average, choose_op, engine_op
from slipstream.faces.mxnet.failures import wrong_arguments
from slipstream.faces.mxnet.memory import Memory, new
from slipstream.faces.mxnet.pushes import CALLS, push_all_reduce, push_broadcast

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
    "start_sum",
    "sum_of",
]

_whole_call = whole(
    lambda *_, **__: world(),
    checks={
        "name": check_text,
        "root_rank": check_int,
        "prescale_factor": as_number,
        "postscale_factor": as_number,
    },
)


def start_sum(tensor: Any, op: int, name: str, prescale: float, group: Group) -> Work:
    """Starts an all-reduce in the array itself, which all ranks of the group start in one order. For `sum_all`."""
    memory = Memory(tensor, writes=True)
    return addresses.all_reduce(
        group,
        memory.address,
        memory.address,
        memory.count,
        memory.dtype,
        engine_op(op),
        name=name,
        shape=memory.shape,
        prescale=prescale,
        keep=(memory,),
    )


def _all_reduce(
    tensors: Sequence[Any],
    in_place: bool,
    average: bool | None,
    name: str | None,
    scales: tuple[float, float],
    process_set: ProcessSet,
    op: int | None,
    line: str = CALLS,
) -> list[Any]:
    with wrong_arguments():
        chosen = choose_op(op, average)
        if chosen != Adasum:
            results = tensors if in_place else [_empty_like(one) for one in tensors]
            if push_all_reduce(
                tensors, results, engine_op(chosen), name, scales, process_set, line, line == CALLS
            ):
                return list(results)
        sources = [Memory(tensor, writes=in_place) for tensor in tensors]
        targets = sources if in_place else [new(one.shape, one.array) for one in sources]
        views = [one.view() for one in sources]
        outs = views if in_place else [one.view() for one in targets]
        if len(views) == 1:
            work = starting.all_reduce(views[0], name, chosen, *scales, process_set, out=outs[0])
            found = [work.wait()]
        elif views:
            found = starting.grouped_all_reduce(views, name, chosen, *scales, process_set).wait()
        else:
            found = []
    return [_written(one, out, target) for one, out, target in zip(found, outs, targets, strict=True)]


def _empty_like(tensor: Any) -> Any:
    """A new array of its kind; the same, if it is no array: who reads it says so."""
    if not isinstance(tensor, mxnet.nd.NDArray):
        return tensor
    return mxnet.nd.empty(tensor.shape, ctx=tensor.context, dtype=tensor.dtype)


def _written(result: Array, out: Array, target: Memory) -> Any:
    """The array of ``target``, which ``out`` is a view of, with this result."""
    if result is not out:
        out[...] = result
    return target.array


@_whole_call
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
    scales = prescale_factor, postscale_factor
    return _all_reduce([tensor], False, average, name, scales, process_set, op)[0]


@_whole_call
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


@_whole_call
def sum_of(tensor: Any, name: str, line: str) -> Any:
    """The sum of all ranks' ``tensor``, in itself. ``line``: what all ranks call in one order."""
    return _all_reduce([tensor], True, False, name, (1.0, 1.0), global_process_set, None, line)[0]


@_whole_call
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


@_whole_call
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


@_whole_call
def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns all ranks' ``tensor`` as one array, joined along the first dimension, in which they may differ."""
    with wrong_arguments():
        return _as_mxnet(starting.all_gather(Memory(tensor).view(), name, process_set).wait(), tensor)


@_whole_call
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allgather` of several arrays; returns the list of the results."""
    if not tensors:
        return []
    with wrong_arguments():
        found = starting.grouped_all_gather(_views(tensors), name, process_set).wait()
    return [_as_mxnet(rows, tensor) for rows, tensor in zip(found, tensors, strict=True)]


@_whole_call
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the ``tensor`` of ``root_rank`` (its number in the job) as a new array, on all ranks."""
    return _broadcast(tensor, _empty_like(tensor), root_rank, name, process_set)


@_whole_call
def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As `broadcast`, but ``tensor`` itself gets the values, and is returned."""
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def _broadcast(tensor: Any, result: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    with wrong_arguments():
        root = number_of_root(root_rank, process_set)
        if push_broadcast(tensor, result, root, name, process_set):
            return result
        in_place = result is tensor
        source = Memory(tensor, writes=in_place)
        target = source if in_place else Memory(result, writes=True)
        starting.broadcast([source.view()], root_rank, name, process_set, [target.view()]).wait()
    return result


@_whole_call
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
    with wrong_arguments():
        counts = None if splits is None else _counts(splits)
        rows, received = starting.all_to_all(Memory(tensor).view(), counts, name, process_set).wait()
    found = _as_mxnet(rows, tensor)
    return found if counts is None else (found, mxnet.nd.array(received, dtype="int32"))


def _counts(splits: Any) -> list[int]:
    """Numbers of rows; ValueError if they are no integers."""
    numbers = np.asarray(splits.asnumpy() if isinstance(splits, mxnet.nd.NDArray) else splits)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"splits must be integers, not {numbers.dtype}: use dtype='int32'")
    return [int(one) for one in numbers.ravel()]


@_whole_call
def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces ``tensor`` over the ranks and returns this rank's rows of it; the first ranks get one row more."""
    with wrong_arguments():
        _check_set(process_set)
        scales = prescale_factor, postscale_factor
        work = starting.reduce_scatter(Memory(tensor).view(), name, op, *scales, process_set)
        return _as_mxnet(work.wait(), tensor)


def reducescatter_(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """As `reducescatter`. The result is a new array all the same: it has fewer rows than ``tensor``."""
    return reducescatter(tensor, *args, **kwargs)


@_whole_call
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of several arrays; returns the list of the results."""
    if not tensors:
        return []
    with wrong_arguments():
        _check_set(process_set)
        scales = prescale_factor, postscale_factor
        found = starting.grouped_reduce_scatter(_views(tensors), name, op, *scales, process_set).wait()
    return [_as_mxnet(rows, tensor) for rows, tensor in zip(found, tensors, strict=True)]


@_whole_call
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have called it."""
    starting.barrier(process_set).wait()


def _check_set(process_set: Any) -> None:
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"process_set must be a ProcessSet, not {type(process_set).__name__}; factors are given by name"
        )


def _views(tensors: Sequence[Any]) -> list[Array]:
    return [Memory(tensor).view() for tensor in tensors]


def _as_mxnet(found: Array, like: Any) -> Any:
    return mxnet.nd.array(found, ctx=like.context, dtype=like.dtype)
