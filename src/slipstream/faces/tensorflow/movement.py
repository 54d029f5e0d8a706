"""The operations of `horovod.tensorflow` that move data: all-gather, broadcast, all-to-all, barrier.

Horovod's convention is that the gradient of a replicated result is the *average* over the ranks of what each hands
back, because ranks that train together each hold a mean loss. So the gradients of allgather and broadcast average;
alltoall's returns each row to where it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slipstream.base.arguments import as_int, check_int, check_text
from slipstream.base.dtypes import WireType
from slipstream.base.errors import SlipstreamError
from slipstream.comm.collectives.interruption import whole
from slipstream.comm.membership.group import world
from slipstream.faces.arrays import starting
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average
from slipstream.faces.tensorflow.bridge import as_tensor, is_eager, may_record, run
from slipstream.faces.tensorflow.failures import as_framework_error, group_of
from slipstream.faces.tensorflow.naming import name_in_graph
from slipstream.faces.tensorflow.native import Call, all_reduce_call, broadcast_call

__all__ = [
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_variables",
    "grouped_allgather",
    "with_gradient",
]


def _check_process_set(name: str, value: object) -> None:
    if not isinstance(value, ProcessSet):
        raise TypeError(f"{name} must be a ProcessSet, not {type(value).__name__}")


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "process_set": _check_process_set,
    "name": check_text,
    "root_rank": check_int,
}
"""What an operation checks of its arguments once it has failed."""

whole_call = whole(lambda *_, **__: world(), checks=CHECKS)


def with_gradient(
    work: Callable[..., Any],
    gradient: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Any,
    native: Call | None = None,
    what: str = "this operation",
) -> list[Any]:
    """`run`, with what ``gradient`` makes of the results' gradients as those of the inputs."""
    if not may_record() and all(map(is_eager, inputs)):
        return run(work, inputs, outputs, native, what)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def call(*xs: Any) -> Any:
        return tuple(run(work, xs, outputs, native, what)), gradient

    return list(call(*inputs))


def _rows(tensor: Any) -> Any:
    """The shape of what all ranks' rows make."""
    if tensor.shape.rank is None:
        return tf.TensorShape(None)
    return tf.TensorShape([None]).concatenate(tensor.shape[1:])


@whole_call
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Joins the tensors of all ranks along dim 0, in the order of the ranks.

    ``tensor``: the same dtype on all ranks, and the same shape but for dim 0; one of no dimension counts as one row.
    Differentiable. Raises Mismatch if shapes or dtypes differ, another SlipstreamError if the operation fails; both as
    `allreduce` says.

    >>> hvd.allgather(tf.constant([hvd.rank()])).numpy()
    array([0, 1], dtype=int32)
    """
    return _all_gather([tensor], name, process_set)[0]


@whole_call
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allgather` of several tensors in one operation; returns the list of the results.

    >>> [one.numpy() for one in hvd.grouped_allgather([tf.constant([hvd.rank()])])]
    [array([0, 1], dtype=int32)]
    """
    return _all_gather(tensors, name, process_set) if tensors else []


def _all_gather(tensors: Sequence[Any], name: str | None, process_set: ProcessSet) -> list[Any]:
    inputs = [as_tensor(one) for one in tensors]
    name = name_in_graph(name, "allgather", process_set)

    def work(*arrays: Any) -> Any:
        if len(arrays) == 1:
            return [starting.all_gather(arrays[0], name, process_set).wait()]
        return starting.grouped_all_gather(arrays, name, process_set).wait()

    def gradient(*dys: Any) -> Any:
        rows = [tf.shape(one)[:1] if one.shape.rank != 0 else tf.constant([1]) for one in inputs]
        shapes = [(dy.dtype, one.shape) for dy, one in zip(dys, inputs, strict=True)]
        of_gradient = name_in_graph(None, "allgather_gradient", process_set)

        def back(*arrays: Any) -> list[Any]:
            counts = [int(one.sum()) for one in arrays[len(dys) :]]
            return _own_rows(arrays[: len(dys)], counts, of_gradient, process_set)

        found = run(back, [*dys, *rows], shapes, what="the gradient of allgather")
        return [tf.reshape(one, tf.shape(x)) for one, x in zip(found, inputs, strict=True)]

    outputs = [(one.dtype, _rows(one)) for one in inputs]
    return with_gradient(work, gradient, inputs, outputs, what="allgather")


def _own_rows(
    dys: Sequence[Any], rows: Sequence[int], name: str | None, process_set: ProcessSet
) -> list[Any]:
    """The averages of all ranks' gradients of what was gathered: of each the rows that this rank had brought."""
    reduced = starting.grouped_all_reduce(dys, name, Average, 1.0, 1.0, process_set).wait()
    everyone = starting.all_gather(np.array([rows]), name, process_set).wait()
    starts = everyone[: process_set.group.rank].sum(0).tolist()
    return [one[start : start + count] for one, start, count in zip(reduced, starts, rows, strict=True)]


@whole_call
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the tensor of ``root_rank`` (its number in the job) on every rank.

    ``tensor``: the same shape and dtype on all ranks. Differentiable. Raises ValueError if the root is not in the set,
    Mismatch if shapes, dtypes or roots differ, another SlipstreamError if the operation fails; as `allreduce` says.

    >>> hvd.broadcast(tf.constant([hvd.rank()]), root_rank=1).numpy()
    array([1], dtype=int32)
    """
    x = as_tensor(tensor)
    root_rank = as_int(root_rank)  # also of a tensor, which `join` returns
    group = group_of(process_set)
    is_root = group.ranks[group.rank] == root_rank
    name = name_in_graph(name, "broadcast", process_set)

    def work(array: Any) -> Any:
        return starting.broadcast([array], root_rank, name, process_set).wait()

    def gradient(dy: Any) -> Any:
        of_gradient = name_in_graph(None, "broadcast_gradient", process_set)

        def back(array: Any) -> list[Any]:
            return [starting.all_reduce(array, of_gradient, Average, 1.0, 1.0, process_set).wait()]

        native = all_reduce_call(Average, 1.0, 1.0, process_set, WireType.EXACT, of_gradient)
        reduced = run(back, [dy], [(dy.dtype, dy.shape)], native, "the gradient of broadcast")[0]
        if is_root:
            return reduced
        with tf.control_dependencies([reduced]):  # the root waits for this rank's part, also in a session
            return tf.identity(tf.zeros_like(reduced))

    native = broadcast_call(root_rank, process_set, name)
    return with_gradient(work, gradient, [x], [(x.dtype, x.shape)], native, "broadcast")[0]


@whole_call
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrites variables with those of ``root_rank``, in one operation; returns them (in a graph: their new values).

    ``variables``: tf.Variable, or variables of Keras on TensorFlow; of the same shapes and dtypes on all ranks, in the
    same order. Raises Mismatch if they differ, otherwise as `broadcast`.

    >>> variable = tf.Variable([float(hvd.rank())])
    >>> [one.numpy() for one in hvd.broadcast_([variable], root_rank=1)]
    [array([1.], dtype=float32)]
    """
    found = [getattr(one, "_value", one) if not isinstance(one, tf.Variable) else one for one in variables]
    if not found:
        return found
    root_rank = as_int(root_rank)
    name = name_in_graph(name, "broadcast", process_set)
    values = [tf.convert_to_tensor(one) for one in found]

    def work(*arrays: Any) -> Any:
        return starting.broadcast(arrays, root_rank, name, process_set).wait()

    native = broadcast_call(root_rank, process_set, name)
    sent = run(work, values, [(one.dtype, one.shape) for one in values], native, "broadcast_variables")
    assigned = [variable.assign(value) for variable, value in zip(found, sent, strict=True)]
    return list(variables) if tf.executing_eagerly() else assigned


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Gives all ranks the variables of ``root_rank``: what comes first in training. As `broadcast_`.

    Returns nothing; in a graph an operation that does it. ``inplace`` is accepted and changes nothing.

    >>> hvd.broadcast_variables([tf.Variable([1.0])], root_rank=0)
    """
    found = broadcast_(list(variables), root_rank, process_set=process_set)
    return None if tf.executing_eagerly() else tf.group(*found)


@whole_call
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows to every rank and receives rows from every rank, in the order of the ranks.

    ``tensor``: the same dtype on all ranks, and the same shape but for dim 0. ``splits``: how many rows each rank gets;
    default: equal shares. Returns the received rows as one tensor, or with ``splits`` the pair (tensor, received
    splits, int32). Differentiable. Raises ValueError if the splits do not fit the rows, Mismatch if shapes or dtypes
    differ, another SlipstreamError if the operation fails; as `allreduce` says.

    >>> hvd.alltoall(tf.range(4) + 10 * hvd.rank()).numpy()  # on rank 0
    array([ 0,  1, 10, 11], dtype=int32)
    """
    x = as_tensor(tensor)
    given = tf.convert_to_tensor([] if splits is None else splits, dtype=tf.int32)
    result, received = _all_to_all(x, given, name, process_set)
    return result if splits is None else (result, received)


def _all_to_all(x: Any, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[Any, Any]:
    name = name_in_graph(name, "alltoall", process_set)

    def work(array: Any, counts: Any) -> list[Any]:
        found, receive = starting.all_to_all(array, counts.tolist(), name, process_set).wait()
        return [found, np.array(receive, np.int32)]

    def gradient(dy: Any, _: Any, received: Any) -> Any:
        return _all_to_all(dy, received, None, process_set)[0]

    outputs = [(x.dtype, _rows(x)), (tf.int32, tf.TensorShape([process_set.size()]))]
    if not may_record() and is_eager(x) and is_eager(splits):
        result, received = run(work, [x, splits], outputs, what="alltoall")
        return result, received

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def call(one: Any, counts: Any) -> Any:
        result, received = run(work, [one, counts], outputs, what="alltoall")
        return (result, received), lambda dy, _: (gradient(dy, _, received), None)

    result, received = call(x, splits)
    return result, received


@whole_call
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it, or has joined. Raises SlipstreamError when a rank is lost.

    >>> hvd.barrier()
    """
    try:
        starting.barrier(process_set).wait()
    except SlipstreamError as error:
        raise as_framework_error(error) from None
