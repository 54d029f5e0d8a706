"""Between TensorFlow's tensors and NumPy arrays, without copies where there is a way.

An eager tensor on the CPU shows its memory as an array, and takes over that of an aligned array by DLPack. In a graph
there are native operations for what is common (`native`), if the job wants them; `graph_calls` does both for the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slipstream.base.errors import SlipstreamError
from slipstream.faces.arrays.kept import keeping
from slipstream.faces.arrays.operands import Array, is_aligned, new_array
from slipstream.faces.tensorflow.failures import as_argument_error, as_framework_error
from slipstream.faces.tensorflow.graph_calls import graph_call
from slipstream.faces.tensorflow.native import Call, started
from slipstream.faces.tensorflow.order import after_latest
from slipstream.faces.tensorflow.xla import called, is_compiling

__all__ = ["Outputs", "as_tensor", "is_eager", "is_plain", "may_record", "run", "to_array", "to_tensor"]

Outputs = Sequence[tuple[Any, Any]]
"""The dtype and the static shape of each result."""

try:  # what tells whether a tape listens costs nothing; to be asked for a gradient in vain costs 50 us
    from tensorflow.python.eager.record import could_possibly_record as may_record
except ImportError:  # of another release

    def may_record() -> bool:
        """Whether somebody may ask for a gradient."""
        return True


try:
    from tensorflow.python.framework.ops import EagerTensor as _EagerTensor
except ImportError:
    _EagerTensor = None

_executing_eagerly = tf.executing_eagerly
_from_dlpack = tf.experimental.dlpack.from_dlpack


def is_plain(tensor: Any) -> bool:
    """Whether it is an eager tensor, used now, of whose gradient nobody asks. It is the quick one of such questions."""
    return type(tensor) is _EagerTensor and not may_record() and _executing_eagerly()


def is_eager(tensor: Any) -> bool:
    """Whether the tensor has its value now, and is used now."""
    return _executing_eagerly() and hasattr(tensor, "_numpy")


def as_tensor(value: Any) -> Any:
    """``value`` as a dense tensor; what a `tf.Variable` holds."""
    if isinstance(value, tf.Tensor):
        return value
    if isinstance(value, tf.IndexedSlices | tf.SparseTensor):
        raise TypeError(f"a dense tensor is needed, not {type(value).__name__}: use tf.convert_to_tensor")
    return tf.convert_to_tensor(value)


def to_array(tensor: Any) -> Array:
    """The memory of an eager tensor, read only."""
    found = tensor._numpy()
    return found if type(found) is np.ndarray else np.asarray(found)


def to_tensor(array: Array, like: Any = None) -> Any:
    """A tensor that takes over an array which nobody writes to any more; on the device of ``like``."""
    if not is_aligned(array):
        copy = new_array(array.shape, array.dtype)
        copy[...] = array
        array = copy
    if array.dtype.kind in "fiuc":
        tensor = _from_dlpack(array.__dlpack__())
    elif array.dtype.itemsize == 2 and array.dtype.name == "bfloat16":
        tensor = tf.bitcast(_from_dlpack(array.view(np.uint16).__dlpack__()), tf.bfloat16)
    else:
        tensor = tf.convert_to_tensor(array)
    if like is not None and _has_gpus() and "GPU" in like.device:
        with tf.device(like.device):
            return tf.identity(tensor)
    return tensor


@functools.cache
def _has_gpus() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def run(
    work: Callable[..., Sequence[Array]],
    inputs: Sequence[Any],
    outputs: Outputs,
    call: Call | None = None,
    what: str = "this operation",
) -> list[Any]:
    """What ``work`` makes of the arrays of ``inputs``, as tensors: now, or whenever the graph runs.

    ``call``: the same, as native operations do it in a graph, and XLA in what it compiles; its results have the shapes
    of the inputs. ``what``: its name, for the error of XLA's functions that have it not.
    Errors of the job are raised as `as_framework_error` says; in a graph they are as `failures.code_in_graph` says,
    with their text.
    """
    if all(map(is_eager, inputs)) and _executing_eagerly():
        try:
            results = work(*map(to_array, inputs))
        except SlipstreamError as error:
            raise as_framework_error(error) from None
        except ValueError as error:
            raise as_argument_error(error) from None
        like = inputs[0] if inputs else None
        return [to_tensor(one, like) for one in results]
    if is_compiling():
        return called(call, inputs, what)
    found = started(call, inputs)
    if found is None:
        found = _by_python(work, inputs, outputs)
    for tensor, (_, shape) in zip(found, outputs, strict=False):
        tensor.set_shape(shape)
    return found


def _by_python(work: Callable[..., Sequence[Array]], inputs: Sequence[Any], outputs: Outputs) -> list[Any]:
    def call(*given: Any) -> list[Array]:
        with keeping():
            return list(work(*[np.asarray(one) for one in given]))

    with after_latest(tf.compat.v1.get_default_graph()) as latest:
        found = graph_call(call, inputs, outputs)
        latest(found[0].op)
    return found
