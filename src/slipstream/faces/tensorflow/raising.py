"""`tf.numpy_function` whose Mismatch is tf.errors.FailedPreconditionError in a graph, as it is with Horovod.

TensorFlow makes UnknownError of what Python raises in a graph. So the function returns a number that stands for the
text of the error, and an operation behind it fails if there is one. That is registered by TensorFlow's C interface,
which is looked up in the library that the process has loaded; without it, a Mismatch is UnknownError like the rest.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slipstream.base.errors import Mismatch
from slipstream.faces.arrays.operands import Array

__all__ = ["numpy_function"]

_OPERATION = "SlipstreamCheck"
_MOST_TEXTS = 64  # of errors that no operation has taken, as their session was ended before
_FAILED_PRECONDITION = int(tf.errors.FAILED_PRECONDITION)

_numbers = itertools.count(1)
_texts: dict[int, bytes] = {}
_lock = threading.Lock()


def numpy_function(
    call: Callable[..., Sequence[Array]], inputs: Sequence[Any], outputs: Sequence[tuple[Any, Any]]
) -> list[Any]:
    """What ``call`` makes of the arrays of ``inputs`` when the graph runs; ``outputs``: dtypes and static shapes."""
    with _lock:  # TensorFlow takes it once
        check = _check()
    dtypes = [dtype for dtype, _ in outputs]
    if check is None:
        found = tf.numpy_function(lambda *given: list(call(*given)), list(inputs), dtypes)
        found = list(found) if isinstance(found, list | tuple) else [found]
    else:
        told = functools.partial(_told, call, outputs)
        *found, number = tf.numpy_function(told, list(inputs), [*dtypes, tf.int64])
        number.set_shape([])
        with tf.control_dependencies([check(number)]):
            found = [tf.identity(one) for one in found]
    for tensor, (_, shape) in zip(found, outputs, strict=False):
        tensor.set_shape(shape)
    return found


def _told(call: Callable[..., Sequence[Array]], outputs: Sequence[tuple[Any, Any]], *given: Any) -> list[Any]:
    """The results, and 0; or nothing, and the number of an error's text."""
    try:
        return [*call(*given), np.int64(0)]
    except Mismatch as error:
        number = next(_numbers)
        with _lock:
            _texts[number] = str(error).encode()
            while len(_texts) > _MOST_TEXTS:
                _texts.pop(next(iter(_texts)))
        return [*(_nothing(dtype, shape) for dtype, shape in outputs), np.int64(number)]


def _nothing(dtype: Any, shape: Any) -> Array:
    dims = tf.TensorShape(shape)
    sizes = [0] if dims.rank is None else [one or 0 for one in dims.as_list()]
    return np.zeros(sizes, tf.as_dtype(dtype).as_numpy_dtype)


_COMPUTE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_SHAPES = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_POINTERS = (
    "TF_NewStatus TF_NewOpDefinitionBuilder TF_NewKernelBuilder TF_TensorData"  # which return them
).split()
_OTHERS = (
    "TF_SetStatus TF_GetCode TF_DeleteStatus TF_OpDefinitionBuilderAddInput TF_OpDefinitionBuilderSetIsStateful "
    "TF_OpDefinitionBuilderSetShapeInferenceFunction TF_RegisterOpDefinition TF_RegisterKernelBuilder TF_GetInput "
    "TF_DeleteTensor TF_OpKernelContext_Failure"
).split()


class _Check:
    """The operation. Never freed: TensorFlow calls its functions as long as the process lives."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name in _POINTERS:
            getattr(library, name).restype = ctypes.c_void_p
        for name in _OTHERS:
            getattr(library, name)  # AttributeError if it is not there
        self._tf = library
        self._compute = _COMPUTE(self._run)
        self._shapes = _SHAPES(lambda _, __: None)

    def register(self) -> bool:
        """Whether TensorFlow has taken it."""
        tf_c = self._tf
        status = ctypes.c_void_p(tf_c.TF_NewStatus())
        try:
            builder = ctypes.c_void_p(tf_c.TF_NewOpDefinitionBuilder(_OPERATION.encode()))
            tf_c.TF_OpDefinitionBuilderAddInput(builder, b"number: int64")
            tf_c.TF_OpDefinitionBuilderSetIsStateful(builder, ctypes.c_bool(True))
            tf_c.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, self._shapes)
            tf_c.TF_RegisterOpDefinition(builder, status)
            if tf_c.TF_GetCode(status):
                return False
            kernel = ctypes.c_void_p(
                tf_c.TF_NewKernelBuilder(_OPERATION.encode(), b"CPU", None, self._compute, None)
            )
            tf_c.TF_RegisterKernelBuilder(_OPERATION.encode(), kernel, status)
            return not tf_c.TF_GetCode(status)
        finally:
            tf_c.TF_DeleteStatus(status)

    def _run(self, _: int | None, context: int) -> None:
        tf_c, tensor = self._tf, ctypes.c_void_p()
        status = ctypes.c_void_p(tf_c.TF_NewStatus())
        try:
            tf_c.TF_GetInput(ctypes.c_void_p(context), 0, ctypes.byref(tensor), status)
            number = ctypes.cast(tf_c.TF_TensorData(tensor), ctypes.POINTER(ctypes.c_int64))[0]
            tf_c.TF_DeleteTensor(tensor)
            if number:
                with _lock:
                    text = _texts.pop(number, b"Mismatch")
                tf_c.TF_SetStatus(status, _FAILED_PRECONDITION, text)
                tf_c.TF_OpKernelContext_Failure(ctypes.c_void_p(context), status)
        finally:
            tf_c.TF_DeleteStatus(status)


@functools.cache
def _check() -> Callable[[Any], Any] | None:
    """What adds the operation to a graph; None if TensorFlow does not take it."""
    from tensorflow.python.framework import op_def_library  # noqa: PLC0415 - of TensorFlow's own, it may be gone

    name = "libtensorflow_framework.2.dylib" if sys.platform == "darwin" else "libtensorflow_framework.so.2"
    try:
        check = _Check(ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), name)))
    except (AttributeError, OSError):
        return None
    if not check.register():
        return None
    return lambda number: op_def_library.apply_op(_OPERATION, number=number)
