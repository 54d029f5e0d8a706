"""Calls of functions that fail: the native operations of such a step end at another place on each rank.

So the lines of its operations are told, before this rank starts any later step (native/tensorflow/line.h).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.context import Context

from slipstream import _core
from slipstream.faces.tensorflow.operations import are_added
from slipstream.faces.tensorflow.order import within_function

__all__ = ["are_seen"]

_KEPT = 4096  # functions whose lines are known; TensorFlow keeps all of their nodes

_numbers = itertools.count()  # of calls
_under_way: list[int] = []
_starts = ctypes.c_uint64.from_address(_core.tensorflow_starts())


def are_seen() -> bool:
    """Whether a call that fails raises at the call: not where TensorFlow runs functions behind Python's back."""
    return bool(tf.config.experimental.get_synchronous_execution())


@functools.lru_cache(maxsize=_KEPT)
def _lines_of(name: bytes) -> list[str]:
    return sorted(within_function(name.decode()).lines)


def _install() -> None:
    call = Context.call_function

    def call_function(self: Any, name: bytes, tensor_inputs: Any, num_outputs: int) -> Any:
        lines = _lines_of(name) if are_added() else None
        if not lines:
            return call(self, name, tensor_inputs, num_outputs)
        since, number, alone = _starts.value, next(_numbers), not _under_way
        _under_way.append(number)
        try:
            return call(self, name, tensor_inputs, num_outputs)
        except BaseException:
            alone = alone and next(_numbers) == number + 1  # also all the time
            for line in lines:
                _core.tensorflow_give_up(line, since, alone)
            raise
        finally:
            _under_way.remove(number)

    Context.call_function = call_function


_install()
