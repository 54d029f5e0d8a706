"""Python functions as operations of graphs: `tf.numpy_function`, with the errors of Horovod, and without its waits.

TensorFlow makes UnknownError of most that Python raises in a graph, and a function that waits keeps one of its threads:
a session whose ranks begin other operations in all of their threads would wait for ever. So the function tells a ticket
how it has ended, for which a native operation waits (`operations`); in sessions it runs in a thread of its own.
Elsewhere `tf.numpy_function` is stateful, so operations run in the order of the program, on all ranks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slipstream import _core
from slipstream.base.errors import SlipstreamError
from slipstream.faces.arrays.operands import Array
from slipstream.faces.tensorflow.failures import code_in_graph
from slipstream.faces.tensorflow.naming import in_session
from slipstream.faces.tensorflow.operations import apply_operation
from slipstream.faces.tensorflow.order import CALL

__all__ = ["graph_call"]

Call = Callable[..., Sequence[Array]]
Outputs = Sequence[tuple[Any, Any]]


def graph_call(call: Call, inputs: Sequence[Any], outputs: Outputs) -> list[Any]:
    """What ``call`` makes of the arrays of ``inputs`` when the graph runs; ``outputs``: dtypes and static shapes."""
    apply = apply_operation()
    if apply is None:
        return _tensors(lambda *given: list(call(*given)), inputs, [dtype for dtype, _ in outputs])
    ticket = apply("SlipstreamOpen", name=None)
    if in_session():
        return _in_thread(call, inputs, outputs, apply, ticket)
    return _at_once(call, inputs, outputs, apply, ticket)


def _tensors(function: Call, inputs: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    found = tf.numpy_function(function, list(inputs), list(dtypes), name=CALL)
    return list(found) if isinstance(found, list | tuple) else [found]


def _at_once(call: Call, inputs: Sequence[Any], outputs: Outputs, apply: Any, ticket: Any) -> list[Any]:
    def told(number: Any, *given: Array) -> list[Any]:
        try:
            results = list(call(*given))
        except (SlipstreamError, ValueError, TypeError) as error:
            _core.tensorflow_end(int(number), code_in_graph(error), str(error))
            return [_nothing(dtype, shape) for dtype, shape in outputs]
        _core.tensorflow_end(int(number))
        return results

    found = _tensors(told, [ticket, *inputs], [dtype for dtype, _ in outputs])
    return list(apply("SlipstreamWait", name=None, ticket=ticket, results=found))


_results: dict[int, Sequence[Array]] = {}  # of tickets that are over, until their graphs ask for them
_lock = threading.RLock()  # a signal's handler may call an operation, too


def _in_thread(call: Call, inputs: Sequence[Any], outputs: Outputs, apply: Any, ticket: Any) -> list[Any]:
    def begin(given: Any, *inputs: Array) -> Any:
        number = int(given)
        _forget_left()
        arrays = [np.array(one) for one in inputs]  # TensorFlow may use the memory again
        thread = threading.Thread(target=run, args=(number, arrays), name="slipstream session", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _end(number, error)
        return np.int64(number)

    def run(number: int, arrays: Sequence[Array]) -> None:
        try:
            results = list(call(*arrays))
        except BaseException as error:
            _end(number, error)
            return
        with _lock:
            _results[number] = results
        if not _core.tensorflow_end(number):
            _take(number)  # its run was cancelled

    begun = _tensors(begin, [ticket, *inputs], [tf.int64])
    begun[0].set_shape([])
    ended = apply("SlipstreamWait", name=None, ticket=ticket, results=begun)
    return _tensors(lambda number, _: _take(int(number)), [ticket, ended[0]], [dtype for dtype, _ in outputs])


def _end(number: int, error: BaseException) -> None:
    _core.tensorflow_end(number, code_in_graph(error), str(error))


def _take(number: int) -> Sequence[Array]:
    with _lock:
        return _results.pop(number, ())


def _forget_left() -> None:
    """Forgets results whose runs were cancelled before they took them: the oldest come first."""
    with _lock:
        for number in [*itertools.islice(_results, 2)]:
            if not _core.tensorflow_has(number):
                del _results[number]


def _nothing(dtype: Any, shape: Any) -> Array:
    dims = tf.TensorShape(shape)
    sizes = [0] if dims.rank is None else [one or 0 for one in dims.as_list()]
    return np.zeros(sizes, tf.as_dtype(dtype).as_numpy_dtype)
