"""Horovod's operations of Keras on values of any kind, now: tensors where TensorFlow is eager, else arrays."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from slipstream.faces.arrays.compression import AnyCompression, Compression
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average
from slipstream.faces.tensorflow import movement, reductions, sessions

__all__ = ["allgather", "allreduce", "broadcast", "broadcast_global_variables", "reducescatter"]


def _now(tensor: Any) -> Any:
    """What an operation gives: in a graph Keras's session runs it."""
    return tensor if tf.executing_eagerly() else tf_keras.backend.get_session().run(tensor)


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
    """Reduces a value over all ranks; as `slipstream.tensorflow.allreduce`.

    >>> float(hvd.allreduce(1.0 + hvd.rank()))
    1.5
    """
    return _now(
        reductions.allreduce(
            tf.convert_to_tensor(value),
            average,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
            process_set=process_set,
        )
    )


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Joins the values of all ranks along dim 0, of which they may differ.

    >>> [int(one) for one in hvd.allgather([hvd.rank()])]
    [0, 1]
    """
    return _now(movement.allgather(tf.convert_to_tensor(value), name=name, process_set=process_set))


def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The value of ``root_rank``; of the same shape and dtype on all ranks.

    >>> int(hvd.broadcast(hvd.rank(), root_rank=1))
    1
    """
    return _now(
        movement.broadcast(tf.convert_to_tensor(value), root_rank, name=name, process_set=process_set)
    )


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Reduces a value over all ranks and returns this rank's rows of the result.

    >>> [float(one) for one in hvd.reducescatter([1.0, 2.0])]  # on rank 0
    [1.0]
    """
    tensor = tf.convert_to_tensor(value)
    return _now(reductions.reducescatter(tensor, op=op, name=name, process_set=process_set))


def broadcast_global_variables(root_rank: int) -> Any:
    """Gives all ranks all global variables of ``root_rank``; RuntimeError where TensorFlow is eager: it has none then.

    >>> hvd.broadcast_global_variables(0)  # after tf.compat.v1.disable_eager_execution()
    """
    return _now(sessions.broadcast_global_variables(root_rank))
