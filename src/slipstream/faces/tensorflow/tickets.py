"""Tickets: what operations of a graph have begun, and the operation of TensorFlow that waits for the end of one.

It takes none of TensorFlow's threads while it waits, and fails as the ticket says. It is registered by TensorFlow's C
interface, which is looked up in the library that the process has loaded; so nothing of it is compiled in.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from slipstream.base.errors import Mismatch
from slipstream.faces.arrays.operands import Array

__all__ = ["Ticket", "take", "wait_operation"]

_OPERATION = b"SlipstreamTicket"
_LONGEST = 600.0  # seconds after their end that results are kept if nothing asks for them, as their session was closed

_numbers = itertools.count(1)
_tickets: dict[int, Ticket] = {}
_lock = threading.RLock()  # a signal's handler may call an operation, too


class Ticket:
    """An operation that has begun: its results, or its error, once it is over."""

    def __init__(self) -> None:
        self.results: Sequence[Array] = ()
        self.error: BaseException | None = None
        self._ended: float | None = None  # when
        self._after: Callable[[Ticket], None] | None = None
        now = time.monotonic()
        with _lock:
            self.number = next(_numbers)
            for one in [*itertools.islice(_tickets.values(), 2)]:  # the oldest
                if one._ended is not None and now - one._ended > _LONGEST:
                    del _tickets[one.number]
            _tickets[self.number] = self

    def end(self, results: Sequence[Array] = (), error: BaseException | None = None) -> None:
        """It is over: with results, or with an error."""
        self.results, self.error = results, error
        with _lock:
            self._ended = time.monotonic()
            after, self._after = self._after, None
        if after is not None:
            after(self)

    def when_over(self, after: Callable[[Ticket], None]) -> None:
        """Calls ``after`` with the ticket once it is over, in whatever thread."""
        with _lock:
            if self._ended is None:
                self._after = after
                return
        after(self)


def take(number: int) -> Ticket:
    """The ticket of a number, which nobody takes twice."""
    with _lock:
        return _tickets.pop(number)


def _code_of(error: BaseException) -> int:
    """As what TensorFlow tells of an error: the code that Horovod has for it, or else that of `tf.numpy_function`."""
    if isinstance(error, Mismatch):
        return int(tf.errors.FAILED_PRECONDITION)
    return int(tf.errors.INVALID_ARGUMENT if isinstance(error, ValueError | TypeError) else tf.errors.UNKNOWN)


_MANAGE = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_INVOKE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CLONE, _DESTROY = 2, 3


class _Done:
    """A copy of what an asynchronous kernel calls at its end.

    TensorFlow hands out the address of a std::function<void()>, which lives as long as the call that hands it out: 16
    bytes of its own, then the functions that copy and that call it.
    """

    def __init__(self, address: int) -> None:
        self._memory = (ctypes.c_void_p * 4).from_buffer_copy((ctypes.c_void_p * 4).from_address(address))
        self._address = ctypes.addressof(self._memory)
        self._manage = _MANAGE(self._memory[2] or 0)
        self._manage(self._address, address, _CLONE)

    def __call__(self) -> None:
        _INVOKE(self._memory[3] or 0)(self._address)
        self._manage(self._address, self._address, _DESTROY)


_COMPUTE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_SHAPES = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_RETURN_POINTERS = ["TF_NewStatus", "TF_NewOpDefinitionBuilder", "TF_NewAsyncKernelBuilder", "TF_TensorData"]
_OTHERS = [
    "TF_DeleteStatus",
    "TF_DeleteTensor",
    "TF_GetCode",
    "TF_GetInput",
    "TF_OpDefinitionBuilderAddInput",
    "TF_OpDefinitionBuilderSetIsStateful",
    "TF_OpDefinitionBuilderSetShapeInferenceFunction",
    "TF_OpKernelContext_Failure",
    "TF_RegisterKernelBuilder",
    "TF_RegisterOpDefinition",
    "TF_SetStatus",
]


class _Operation:
    """SlipstreamTicket(number): ends when the ticket of this number is over; 0 is always."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name in _RETURN_POINTERS:
            getattr(library, name).restype = ctypes.c_void_p
        for name in _OTHERS:
            getattr(library, name)  # AttributeError if it is not there
        self._tf = library
        self._compute = _COMPUTE(self._run)
        self._shapes = _SHAPES(lambda _, __: None)

    def register(self) -> bool:
        """Whether TensorFlow has taken it; then this object has to stay."""
        tf_c, status = self._tf, ctypes.c_void_p(self._tf.TF_NewStatus())
        builder = ctypes.c_void_p(tf_c.TF_NewOpDefinitionBuilder(_OPERATION))
        tf_c.TF_OpDefinitionBuilderAddInput(builder, b"number: int64")
        tf_c.TF_OpDefinitionBuilderSetIsStateful(builder, ctypes.c_bool(True))
        tf_c.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, self._shapes)
        tf_c.TF_RegisterOpDefinition(builder, status)
        if not tf_c.TF_GetCode(status):
            kernel = tf_c.TF_NewAsyncKernelBuilder(_OPERATION, b"CPU", None, self._compute, None)
            tf_c.TF_RegisterKernelBuilder(_OPERATION, ctypes.c_void_p(kernel), status)
        good = not tf_c.TF_GetCode(status)
        tf_c.TF_DeleteStatus(status)
        return good

    def _run(self, _: int | None, context: int, done: int) -> None:
        """What TensorFlow calls; whatever happens, it ends some day."""
        kept = _Done(done)
        try:
            number = self._number(context)
            if number == 0:
                kept()
                return
            with _lock:
                ticket = _tickets[number]
        except BaseException as error:
            self._end(context, kept, error)
            return
        ticket.when_over(lambda one: self._over(context, kept, one))

    def _over(self, context: int, done: _Done, ticket: Ticket) -> None:
        if ticket.error is not None:
            take(ticket.number)  # nothing else does
        self._end(context, done, ticket.error)

    def _end(self, context: int, done: _Done, error: BaseException | None) -> None:
        if error is not None:
            tf_c, status = self._tf, ctypes.c_void_p(self._tf.TF_NewStatus())
            tf_c.TF_SetStatus(status, _code_of(error), str(error).encode(errors="replace"))
            tf_c.TF_OpKernelContext_Failure(ctypes.c_void_p(context), status)
            tf_c.TF_DeleteStatus(status)
        done()

    def _number(self, context: int) -> int:
        tf_c, tensor = self._tf, ctypes.c_void_p()
        status = ctypes.c_void_p(tf_c.TF_NewStatus())
        tf_c.TF_GetInput(ctypes.c_void_p(context), 0, ctypes.byref(tensor), status)
        tf_c.TF_DeleteStatus(status)
        number = ctypes.cast(tf_c.TF_TensorData(tensor), ctypes.POINTER(ctypes.c_int64))[0]
        tf_c.TF_DeleteTensor(tensor)
        return int(number)


@functools.cache
def _registered() -> Callable[[Any], Any] | None:
    if sys.platform != "linux":  # other C++ libraries lay out their functions in other ways
        return None
    from tensorflow.python.framework import op_def_library

    try:
        path = os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2")
        operation = _Operation(ctypes.CDLL(path))
    except (AttributeError, OSError):
        return None
    name = _OPERATION.decode()
    return (lambda number: op_def_library.apply_op(name, number=number)) if _kept(operation) else None


_operations: list[_Operation] = []  # TensorFlow calls them as long as the process lives


def _kept(operation: _Operation) -> bool:
    _operations.append(operation)
    return operation.register()


def wait_operation() -> Callable[[Any], Any] | None:
    """What adds to a graph the operation that waits for the ticket of a number; None if TensorFlow has no way."""
    with _lock:
        return _registered()
