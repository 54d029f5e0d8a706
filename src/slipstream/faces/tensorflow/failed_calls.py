"""Calls of functions that fail: the native operations of such a step end at another place on each rank.

So the lines of its operations are told, before this rank starts any later step (native/tensorflow/line.h). A call may
also fail before the function runs: its arguments may not fit, or it cannot be traced for them.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.context import Context
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from slipstream import _core
from slipstream.base.errors import Aborted, SlipstreamError
from slipstream.comm.membership import job as jobs
from slipstream.comm.membership.group import world
from slipstream.faces.tensorflow.operations import are_added
from slipstream.faces.tensorflow.order import within_function

__all__ = ["are_seen"]

_KEPT = 4096  # functions whose lines are known; TensorFlow keeps all of their nodes
_BESIDE = (
    "a function with operations of slipstream was called while another thread runs one with the same operations, or "
    "with others that have no name: which of them belong together on the ranks is not known. Run such functions one at "
    "a time, or give their operations names that no other function has"
)

_numbers = itertools.count()  # of calls
_under_way: dict[int, frozenset[str]] = {}  # the lines of calls
_starts = ctypes.c_uint64.from_address(_core.tensorflow_starts())


class _Begun(threading.local):
    calls = 0  # of this thread


_begun = _Begun()


def are_seen() -> bool:
    """Whether a call that fails raises at the call: not where TensorFlow runs functions behind Python's back."""
    return bool(tf.config.experimental.get_synchronous_execution())


@functools.lru_cache(maxsize=_KEPT)
def _lines_of(name: bytes) -> frozenset[str]:
    return within_function(name.decode()).lines


def _give_up(lines: frozenset[str], since: int, error: BaseException, alone: bool = True) -> None:
    """A call has failed with ``error``."""
    if not jobs.is_initialized():
        return
    try:
        jobs.current().session.check()
    except SlipstreamError:
        return  # the job has failed, and in the next one all ranks begin anew
    # It may be that a rank has no more data, and joins.
    later = isinstance(error, tf.errors.OutOfRangeError | StopIteration)
    for line in lines:
        _core.tensorflow_give_up(line, since, alone, later)


def _is_within_another() -> bool:
    """Whether this is called by Python that a function of TensorFlow runs."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "tensorflow.python.ops.script_ops":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _check_alone(lines: frozenset[str], number: int) -> None:
    """Raises, and ends the job, where another thread runs a function that shares a line with this one."""
    for other, of_other in list(_under_way.items()):
        if other != number and not lines.isdisjoint(of_other) and not _is_within_another():
            world().abort(_BESIDE)
            raise Aborted(_BESIDE)


def _install() -> None:
    run, call = Context.call_function, Function.__call__

    def call_function(self: Any, name: bytes, tensor_inputs: Any, num_outputs: int) -> Any:
        lines = _lines_of(name) if are_added() else None
        if not lines:
            return run(self, name, tensor_inputs, num_outputs)
        _begun.calls += 1
        since, number, alone = _starts.value, next(_numbers), not _under_way
        _under_way[number] = lines
        try:
            if not alone:
                _check_alone(lines, number)
            return run(self, name, tensor_inputs, num_outputs)
        except BaseException as error:
            alone = alone and next(_numbers) == number + 1  # also all the time
            _give_up(lines, since, error, alone)
            raise
        finally:
            del _under_way[number]

    @functools.wraps(call)
    def call_traced(self: Any, *args: Any, **kwds: Any) -> Any:
        calls = _begun.calls
        try:
            return call(self, *args, **kwds)
        except BaseException as error:
            if are_added() and calls == _begun.calls and tf.executing_eagerly():
                _give_up(_lines_of_all(self), _starts.value, error)
            raise

    Context.call_function = call_function
    Function.__call__ = call_traced


def _lines_of_all(function: Any) -> frozenset[str]:
    """Those of what it has been traced to so far. If they cannot be had, the job ends: the call's error stays."""
    try:
        found = [_lines_of(one._inference_function.name) for one in function._list_all_concrete_functions()]
    except Exception as problem:
        if jobs.is_initialized():
            world().abort(f"a function of TensorFlow has failed, and its operations are not known: {problem!r}")
        return frozenset()
    return frozenset().union(*found)


_install()
