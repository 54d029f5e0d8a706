"""Horovod's operations on MXNet's arrays.

All ranks call them in one order (`lines`). All-reduces and broadcasts return at once: MXNet's engine runs them
(`pushes`), and raises their errors for whoever waits for the result. The others (`waits`) wait until MXNet has computed
what they read, and return when they are done. Where ranks call different operations, or differ in shape, dtype,
factors or root, every rank gets Mismatch.
``name`` is what errors and the timeline call an operation, and is compared. ``priority`` is accepted and changes
nothing. Arguments that do not fit are a ValueError that is an MXNetError, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet
import numpy as np

from slipstream._core import MxnetLine
from slipstream.base.arguments import as_number, check_int, check_text
from slipstream.base.dtypes import Op
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.interruption import whole
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group, world
from slipstream.faces.arrays import starting
from slipstream.faces.arrays.movement import number_of_root
from slipstream.faces.arrays.operands import Array
from slipstream.faces.horovod import objects
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Adasum, Average, choose_op, engine_op
from slipstream.faces.mxnet.asked import Asked, broadcast_from, sum_by
from slipstream.faces.mxnet.failures import wrong_arguments
from slipstream.faces.mxnet.lines import CALLS, line_for
from slipstream.faces.mxnet.memory import Memory
from slipstream.faces.mxnet.pushes import push
from slipstream.faces.mxnet.waits import Waiting, in_turn, start

__all__ = [
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
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


def start_sum(
    tensor: Any, name: str, prescale: float, process_set: ProcessSet, line: str, takes_reducers: bool
) -> Work | Waiting | None:
    """Starts a sum in the array itself, which ends the job where ranks differ. ``line``: what has one order.

    None if MXNet's engine runs it; else it is waited for.
    """
    group: Group = process_set.group
    found = line_for(group, line, takes_reducers)
    if found is None:
        memory = Memory(tensor, writes=True)
        return addresses.all_reduce(
            group,
            memory.address,
            memory.address,
            memory.count,
            memory.dtype,
            Op.SUM,
            name=name,
            shape=memory.shape,
            prescale=prescale,
            keep=(memory,),
        )
    given = [tensor]
    asked = sum_by(Op.SUM, name, (prescale, 1.0), asks=False)
    return None if push(found, asked, given, given) else start(found, asked, given, given)


def _run(line: MxnetLine, asked: Asked, tensors: Sequence[Any], results: Sequence[Any]) -> None:
    if not push(line, asked, tensors, results):
        start(line, asked, tensors, results).wait()


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
        found = None if chosen == Adasum else line_for(process_set.group, line)
        results = tensors if in_place else [_empty_like(one) for one in tensors]
        if found is None:
            _negotiate_all_reduce(tensors, results, name, chosen, scales, process_set)
        elif tensors:
            _run(found, sum_by(engine_op(chosen), name, scales, asks=line == CALLS), tensors, results)
        return list(results)


def _negotiate_all_reduce(
    tensors: Sequence[Any],
    results: Sequence[Any],
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: ProcessSet,
) -> None:
    """By a group that may have reducers, or by Adasum: what no line has."""
    in_place = results is tensors
    sources = [Memory(tensor, writes=in_place) for tensor in tensors]
    views = [one.view() for one in sources]
    outs = views if in_place else [Memory(one, writes=True).view() for one in results]
    with in_turn():
        if len(views) == 1:
            found = [starting.all_reduce(views[0], name, op, *scales, process_set, out=outs[0]).wait()]
        elif views:
            found = starting.grouped_all_reduce(views, name, op, *scales, process_set).wait()
        else:
            found = []
    for result, out in zip(found, outs, strict=True):
        if result is not out:
            out[...] = result


def _empty_like(tensor: Any) -> Any:
    """A new array of its kind; the same, if it is no array: who reads it says so."""
    if not isinstance(tensor, mxnet.nd.NDArray):
        return tensor
    return mxnet.nd.empty(tensor.shape, ctx=tensor.context, dtype=tensor.dtype)


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
    with wrong_arguments(), in_turn():
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
    with wrong_arguments(), in_turn():
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
    in_place = result is tensor
    with wrong_arguments():
        root = number_of_root(root_rank, process_set)
        found = line_for(process_set.group, CALLS)
        if found is not None:
            given = [tensor]
            _run(found, broadcast_from(root, name), given, given if in_place else [result])
            return result
        source = Memory(tensor, writes=in_place)
        target = source if in_place else Memory(result, writes=True)
        with in_turn():
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
    with wrong_arguments(), in_turn():
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
    with wrong_arguments(), in_turn():
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
    with wrong_arguments(), in_turn():
        _check_set(process_set)
        scales = prescale_factor, postscale_factor
        found = starting.grouped_reduce_scatter(_views(tensors), name, op, *scales, process_set).wait()
    return [_as_mxnet(rows, tensor) for rows, tensor in zip(found, tensors, strict=True)]


@_whole_call
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have called it."""
    with in_turn():
        starting.barrier(process_set).wait()


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object that ``root_rank`` (its number in the job) gave, on every rank; itself on the root."""
    with in_turn():
        return objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks, in rank order."""
    with in_turn():
        found: list[Any] = objects.allgather_object(obj, name, process_set)
        return found


def _check_set(process_set: Any) -> None:
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"process_set must be a ProcessSet, not {type(process_set).__name__}; factors are given by name"
        )


def _views(tensors: Sequence[Any]) -> list[Array]:
    return [Memory(tensor).view() for tensor in tensors]


def _as_mxnet(found: Array, like: Any) -> Any:
    return mxnet.nd.array(found, ctx=like.context, dtype=like.dtype)
