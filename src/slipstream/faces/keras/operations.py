"""Horovod's operations of Keras: on values of any kind, now.

The results are NumPy arrays; on the back end tensorflow they are its tensors, as those of Horovod, where it runs
eagerly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.comm.collectives.interruption import whole
from slipstream.comm.membership.group import world
from slipstream.faces.arrays import starting
from slipstream.faces.arrays.compression import AnyCompression, Compression, wire_for
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average, choose_op
from slipstream.faces.keras.backends import as_result, to_array, variable_arrays

__all__ = ["allgather", "allreduce", "broadcast", "broadcast_variables", "reducescatter"]

_whole = whole(lambda *_, **__: world())


@_whole
def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: AnyCompression = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces a value over all ranks; returns an array, or a tensor of TensorFlow.

    ``value``: a number, a list, an array, a tensor or a variable, of the same shape and dtype on all ranks. ``op``:
    Average (the default), Sum, Min, Max, Product or Adasum; ``average`` is its deprecated forerunner. Raises Mismatch
    if the ranks' shapes, dtypes or operations differ, another SlipstreamError if the operation fails.

    >>> float(hvd.allreduce(1.0 + hvd.rank()))
    1.5
    """
    op = choose_op(op, average)
    small, ctx = compression.compress(to_array(value))
    wire = wire_for(compression, process_set.group)
    given = name, op, prescale_factor, postscale_factor, process_set, wire
    return as_result(compression.decompress(starting.all_reduce(small, *given).wait(), ctx))


@_whole
def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Joins the values of all ranks along dim 0, of which they may differ; returns an array, or a tensor of TensorFlow.

    >>> [int(one) for one in hvd.allgather([hvd.rank()])]
    [0, 1]
    """
    return as_result(starting.all_gather(to_array(value), name, process_set).wait())


@_whole
def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The value of ``root_rank``, as an array, or a tensor of TensorFlow; of the same shape and dtype on all ranks.

    >>> int(hvd.broadcast(hvd.rank(), root_rank=1))
    1
    """
    return as_result(starting.broadcast([to_array(value)], root_rank, name, process_set).wait()[0])


@_whole
def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Reduces a value over all ranks and returns this rank's rows of the result: an array, or a tensor of TensorFlow.

    >>> [float(one) for one in hvd.reducescatter([1.0, 2.0])]  # on rank 0
    [1.0]
    """
    pending = starting.reduce_scatter(to_array(value), name, op, 1.0, 1.0, process_set)
    return as_result(pending.wait())


@_whole
def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the values that variables of Keras have on ``root_rank``, in one operation.

    ``variables``: such as ``model.weights``; of the same shapes and dtypes on all ranks, in the same order. Raises
    Mismatch if they differ, another SlipstreamError if the operation fails.

    >>> variable = keras.Variable([float(hvd.rank())])
    >>> hvd.broadcast_variables([variable], root_rank=1)
    >>> variable.numpy()
    array([1.], dtype=float32)
    """
    found = list(variables)
    if not found:
        return
    arrays = variable_arrays(found)
    sent = starting.broadcast(arrays, root_rank, None, process_set).wait()
    for variable, array in zip(found, sent, strict=True):
        variable.assign(array)
