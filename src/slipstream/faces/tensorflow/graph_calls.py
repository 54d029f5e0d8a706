"""Python functions as operations of graphs: `tf.numpy_function`, with the errors of Horovod, and without its waits.

TensorFlow makes UnknownError of what Python raises in a graph, and a function that waits keeps one of its threads: a
session whose ranks begin other operations in all of their threads would wait for ever. So in sessions the function runs
in a thread of its own, and an operation that takes no thread waits for it (`tickets`). Elsewhere `tf.numpy_function` is
stateful, so operations run in the order of the program, on all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slipstream.base.errors import Mismatch
from slipstream.faces.arrays.operands import Array
from slipstream.faces.tensorflow.naming import in_session
from slipstream.faces.tensorflow.tickets import Ticket, take, wait_operation

__all__ = ["graph_call"]

Call = Callable[..., Sequence[Array]]
Outputs = Sequence[tuple[Any, Any]]


def graph_call(call: Call, inputs: Sequence[Any], outputs: Outputs) -> list[Any]:
    """What ``call`` makes of the arrays of ``inputs`` when the graph runs; ``outputs``: dtypes and static shapes."""
    wait = wait_operation()
    dtypes = [dtype for dtype, _ in outputs]
    if wait is None:
        found = tf.numpy_function(lambda *given: list(call(*given)), list(inputs), dtypes)
        return list(found) if isinstance(found, list | tuple) else [found]
    return _in_thread(call, inputs, dtypes, wait) if in_session() else _checked(call, inputs, outputs, wait)


def _in_thread(
    call: Call, inputs: Sequence[Any], dtypes: Sequence[Any], wait: Callable[[Any], Any]
) -> list[Any]:
    def begin(*given: Array) -> Any:
        ticket = Ticket()
        arrays = [np.array(one) for one in given]  # TensorFlow may use the memory again
        threading.Thread(target=run, args=(ticket, arrays), name="slipstream session", daemon=True).start()
        return np.int64(ticket.number)

    def run(ticket: Ticket, arrays: Sequence[Array]) -> None:
        try:
            results = list(call(*arrays))
        except BaseException as error:
            ticket.end(error=error)
        else:
            ticket.end(results)

    number = tf.numpy_function(begin, list(inputs), tf.int64)
    number.set_shape([])
    with tf.control_dependencies([wait(number)]):
        found = tf.numpy_function(lambda one: list(take(int(one)).results), [number], list(dtypes))
    return list(found) if isinstance(found, list | tuple) else [found]


def _checked(call: Call, inputs: Sequence[Any], outputs: Outputs, wait: Callable[[Any], Any]) -> list[Any]:
    def told(*given: Array) -> list[Any]:
        try:
            return [*call(*given), np.int64(0)]
        except Mismatch as error:
            ticket = Ticket()
            ticket.end(error=error)
            return [*(_nothing(dtype, shape) for dtype, shape in outputs), np.int64(ticket.number)]

    *found, number = tf.numpy_function(told, list(inputs), [*(dtype for dtype, _ in outputs), tf.int64])
    number.set_shape([])
    with tf.control_dependencies([wait(number)]):
        return [tf.identity(one) for one in found]


def _nothing(dtype: Any, shape: Any) -> Array:
    dims = tf.TensorShape(shape)
    sizes = [0] if dims.rank is None else [one or 0 for one in dims.as_list()]
    return np.zeros(sizes, tf.as_dtype(dtype).as_numpy_dtype)
