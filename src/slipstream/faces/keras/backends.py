"""Between the tensors of Keras's back ends and NumPy arrays, eagerly and in compiled functions.

In a function that JAX compiles, an ordered callback takes the arrays: callbacks run in the order of the program, which
is the same on all ranks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from slipstream.faces.arrays.kept import keeping
from slipstream.faces.arrays.operands import Array

__all__ = ["as_result", "run", "to_array", "variable_arrays"]

Work = Callable[..., Sequence[Array]]


def run(work: Work, tensors: Sequence[Any]) -> list[Any]:
    """What ``work`` makes of the arrays of ``tensors``: as many, of the same shapes and dtypes, as tensors."""
    backend = keras.config.backend()
    if backend not in _RUNS:
        raise RuntimeError(
            f"slipstream has no face for Keras's back end {backend!r}: use one of {', '.join(_RUNS)}"
        )
    return _RUNS[backend](work, tensors)


def _run_tensorflow(work: Work, tensors: Sequence[Any]) -> list[Any]:
    bridge = importlib.import_module("slipstream.faces.tensorflow.bridge")
    found: list[Any] = bridge.run(work, tensors, [(one.dtype, one.shape) for one in tensors])
    return found


def _run_jax(work: Work, tensors: Sequence[Any]) -> list[Any]:
    jax = importlib.import_module("jax")

    def call(*given: Any) -> list[Array]:
        with keeping():
            return list(work(*[np.asarray(one) for one in given]))

    if not any(isinstance(one, jax.core.Tracer) for one in tensors):
        return [jax.numpy.asarray(one) for one in call(*tensors)]
    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in tensors]
    found = jax.experimental.io_callback(call, shapes, *tensors, ordered=True)
    return list(found)


def _run_torch(work: Work, tensors: Sequence[Any]) -> list[Any]:
    torch = importlib.import_module("torch")
    # NumPy has no bfloat16: such tensors travel in float32.
    wide = [one.detach().float() if one.dtype is torch.bfloat16 else one.detach() for one in tensors]
    results = work(*[one.cpu().contiguous().numpy() for one in wide])
    return [
        torch.from_numpy(array).to(dtype=one.dtype, device=one.device)
        for array, one in zip(results, tensors, strict=True)
    ]


_RUNS: dict[str, Callable[[Work, Sequence[Any]], list[Any]]] = {
    "tensorflow": _run_tensorflow,
    "jax": _run_jax,
    "torch": _run_torch,
}


def to_array(value: Any) -> Array:
    """A tensor, a variable, or what NumPy makes an array of, as an array that lies in one piece."""
    array = np.asarray(keras.ops.convert_to_numpy(value) if not isinstance(value, np.ndarray) else value)
    return array if array.flags.c_contiguous else array.copy(order="C")


def variable_arrays(variables: Sequence[Any]) -> list[Array]:
    """The values of variables."""
    return [
        to_array(one.value if hasattr(one, "value") and not callable(one.value) else one) for one in variables
    ]


def as_result(array: Array) -> Any:
    """The array itself, or TensorFlow's tensor, if that is the back end and runs eagerly."""
    if keras.config.backend() != "tensorflow":
        return array
    tf = importlib.import_module("tensorflow")
    return tf.convert_to_tensor(array) if tf.executing_eagerly() else array
