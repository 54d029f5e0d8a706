"""Calls of functions that fail: the native operations of such a step end at another place on each rank.

So the lines of its operations are told, before this rank starts any later step (native/tensorflow/line.h). A call may
also fail before the function runs: its arguments may not fit, or it cannot be traced for them.

Some lines would certainly have been used if the call had not failed: those of operations that run whenever the function
does. Others would perhaps: operations in a condition or a loop. What a function would have used that was never traced
is not known before it is.

A call that was to reduce gradients by Python, and has not come to that, counts for the turns of its exchange
(slipstream.gradients.turns).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import sys
import threading
import weakref
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.context import Context
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.util import tf_decorator

from slipstream import _core
from slipstream.base.errors import Aborted, SlipstreamError
from slipstream.comm.membership import job as jobs
from slipstream.comm.membership.group import world
from slipstream.faces.tensorflow.lines import group_of
from slipstream.faces.tensorflow.operations import are_added
from slipstream.faces.tensorflow.order import Within, within_function
from slipstream.gradients.turns import turns_of

__all__ = ["are_seen"]

_BESIDE = (
    "a function with operations of slipstream was called while another thread runs one with the same operations, or "
    "with others that have no name: which of them belong together on the ranks is not known. Run such functions one at "
    "a time, or give their operations names that no other function has"
)

_FAILED_BESIDE = (
    "a function has failed while several functions with the same operations of slipstream ran at the same time on this "
    "rank, in threads or in a tf.py_function of another one: which operations belong together on the ranks is not "
    "known any more. Run such functions one at a time, or give their operations names that no other function has"
)


@dataclass
class _Call:
    lines: frozenset[str]
    alone: bool  # no other call has used one of these lines so far


_INITIALISES = b"__inference_initialize_variables_"
"""How the names begin of TensorFlow's functions that initialise variables which a function has made."""

_numbers = itertools.count()  # of calls
_under_way: dict[int, _Call] = {}
_starts = ctypes.c_uint64.from_address(_core.tensorflow_starts())


_Key = tuple[str, Any]
"""The name of a function, and what tells functions of this name apart."""


@dataclass(eq=False)
class _Untraced:
    """Calls that have failed in this job before their function could be traced for any arguments.

    A program may go on with the function, with a concrete one of it, or with one that it makes anew.
    """

    key: _Key
    function: weakref.ref[Any]
    others: weakref.WeakSet[Any]  # that had this key at the first call, concrete ones too
    calls: int = 1

    def is_of(self, function: Any) -> bool:
        if _is_of(function, self.key) and function not in self.others:
            theirs = (trace for other in self.others for trace in _traces_of(other))
            return not any(trace is function for trace in theirs)
        return False


_untraced: list[_Untraced] = []
_keys: weakref.WeakKeyDictionary[Any, _Key] = weakref.WeakKeyDictionary()  # of concrete functions


@dataclass
class _Watched:
    """A call of a function. While the function is traced, Python may call others, which are no part of it."""

    function: Any
    runs: bool = False  # the call has reached its function


class _Thread(threading.local):
    call: _Watched | None = None  # the latest that has not returned


_thread = _Thread()
_given_up: set[str] = set()  # lines whose ranks hear of a call that has failed
_job: Any = None  # the job of these, and of `_untraced`


def are_seen() -> bool:
    """Whether a call that fails raises at the call: not where TensorFlow runs functions behind Python's back."""
    return bool(tf.config.experimental.get_synchronous_execution())


def _turns_of(ranks: str) -> Any:
    """Of the exchanges of gradients in the process set of these ranks; None where it is not registered."""
    try:
        return turns_of(group_of(ranks))
    except ValueError:
        return None


def _begun(within: Within) -> dict[str, int]:
    """How many turns of exchanges the process sets have begun whose gradients the function reduces."""
    if not within.steps or not jobs.is_initialized():
        return {}
    return {ranks: turns.begun for ranks in within.steps if (turns := _turns_of(ranks)) is not None}


def _give_up(
    within: Within, since: int, begun: dict[str, int], error: BaseException | None, alone: bool = True
) -> None:
    """A call has failed with ``error``. ``since``, ``begun``: the starts, and the turns of exchanges, before it."""
    if not (within.lines or within.steps) or not jobs.is_initialized():
        return
    try:
        _remember_job().session.check()
    except SlipstreamError:
        return  # the job has failed, and in the next one all ranks begin anew
    if not alone:
        world().abort(_FAILED_BESIDE)
        return
    # It may be that a rank has no more data, and joins.
    later = isinstance(error, tf.errors.OutOfRangeError | StopIteration)
    _given_up.update(within.lines)
    for line in within.lines:
        _core.tensorflow_give_up(line, since, line in within.certain, later)
    for ranks, count in begun.items():
        if (turns := _turns_of(ranks)) is not None:
            turns.given_up(count, within.steps[ranks])


def _key_of(function: Any) -> _Key:
    """The name of a function, and its code.

    A method's code is not that of TensorFlow's wrapper, which all methods have. An object's is that of its class; where
    the class inherits it, as layers of Keras do, the class counts, too.
    """
    _, python = tf_decorator.unwrap(function.python_function)
    while isinstance(python, functools.partial):
        python = python.func
    if hasattr(python, "__code__"):
        return function.name, python.__code__
    kind = type(python)
    code = getattr(kind.__call__, "__code__", None)
    if code is not None and "__call__" in vars(kind):
        return function.name, code
    return function.name, (code, kind.__module__, kind.__qualname__)


def _is_of(function: Any, key: _Key) -> bool:
    if isinstance(function, ConcreteFunction):
        # One that was not made by `get_concrete_function` in this process, such as a loaded one, has its name alone.
        known = _keys.get(function)
        return function.graph.name == key[0] if known is None else known == key
    try:
        return _key_of(function) == key
    except AttributeError:  # it is being made, or could not be made
        return False


def _remember_untraced(function: Any) -> None:
    for known in _untraced:
        if known.function() is function:
            known.calls += 1
            return
    key = _key_of(function)
    others = [
        one
        for one in gc.get_objects()
        if type(one) in (Function, ConcreteFunction) and one is not function and _is_of(one, key)
    ]
    _untraced.append(_Untraced(key, weakref.ref(function), weakref.WeakSet(others)))


def _tell_untraced(function: Any, within: Within, since: int, begun: dict[str, int]) -> None:
    """The lines of ``function`` hear of its calls before that could not be traced."""
    if not _untraced or function is None or not (within.lines or within.steps):
        return
    for call in [one for one in list(_untraced) if one.is_of(function)]:
        try:
            _untraced.remove(call)
        except ValueError:  # another thread tells it
            continue
        for _ in range(call.calls):
            _give_up(replace(within, certain=frozenset()), since, begun, None)


def _remember_job() -> Any:
    """The job as it is now. What failed in it counts no more when it is left."""
    global _job
    now = jobs.current()
    if _job is not now:
        _job = now
        now.when_left(_forget)
    return now


def _forget() -> None:
    global _job
    _job = None
    _untraced.clear()
    for line in _given_up:
        _core.tensorflow_forget(line)
    _given_up.clear()


def _is_within_another() -> bool:
    """Whether this is called by Python that a function of TensorFlow runs."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "tensorflow.python.ops.script_ops":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _check_alone(call: _Call) -> None:
    """Raises, and ends the job, where another thread runs a function that shares a line with this one."""
    for other in list(_under_way.values()):
        if other is call or call.lines.isdisjoint(other.lines):
            continue
        call.alone = other.alone = False
        if not _is_within_another():
            world().abort(_BESIDE)
            raise Aborted(_BESIDE)


def _install() -> None:
    run = Context.call_function

    def call_function(self: Any, name: bytes, tensor_inputs: Any, num_outputs: int) -> Any:
        # An interrupt may come anywhere. As long as `runs` is false, `watched` tells of it.
        call = _thread.call or _Watched(None)
        within = within_function(name.decode()) if are_added() else None
        if within is None or not (within.lines or within.steps):
            # A function that makes variables is traced again when TensorFlow has initialised them.
            call.runs = call.runs or not name.startswith(_INITIALISES)
            return run(self, name, tensor_inputs, num_outputs)
        since, begun, number = _starts.value, _begun(within), next(_numbers)
        mine = _Call(within.lines, True)
        try:
            tells = not call.runs
            call.runs = True
            if tells:
                _tell_untraced(call.function, within, since, begun)
            _under_way[number] = mine
            if len(_under_way) > 1:
                _check_alone(mine)
            return run(self, name, tensor_inputs, num_outputs)
        except BaseException as error:
            _give_up(within, since, begun, error, mine.alone)
            raise
        finally:
            _under_way.pop(number, None)

    Context.call_function = call_function
    Function.__call__ = _watched(Function.__call__)
    ConcreteFunction.__call__ = _watched(ConcreteFunction.__call__)
    Function.get_concrete_function = _watched_trace(Function.get_concrete_function)


def _traces_of(function: Any) -> list[Any]:
    return [function] if isinstance(function, ConcreteFunction) else list(function._function_cache.values())


def _watched(call: Any) -> Any:
    """``call`` of a function; where it fails before the function runs, the lines of its traces hear of that."""

    @functools.wraps(call)
    def watched(self: Any, *args: Any, **kwds: Any) -> Any:
        around = _thread.call
        _thread.call = mine = _Watched(self)
        try:
            return call(self, *args, **kwds)
        except BaseException as error:
            if not mine.runs and tf.executing_eagerly():
                _not_run(self, error)
            raise
        finally:
            _thread.call = around
            # A function may be called by way of its own trace.
            if around is not None and mine.runs and any(one is self for one in _traces_of(around.function)):
                around.runs = True

    return watched


def _watched_trace(trace: Any) -> Any:
    """``trace`` makes a concrete function. Where it fails, the program may have meant to call that in this step."""

    @functools.wraps(trace)
    def watched(self: Any, *args: Any, **kwds: Any) -> Any:
        try:
            made = trace(self, *args, **kwds)
        except BaseException as error:
            if tf.executing_eagerly():
                _not_run(self, error, called=False)
            raise
        _keys[made] = _key_of(self)
        return made

    return watched


def _is_of_dataset(function: Any) -> bool:
    """Whether tf.data has made the function: it runs in no step of the program."""
    module = getattr(getattr(function, "python_function", None), "__module__", None)
    return str(module).startswith("tensorflow.python.data.")


def _not_run(function: Any, error: BaseException, called: bool = True) -> None:
    """A call has failed before the function ran. If its lines cannot be had, the job ends: the call's error stays.

    ``called``: false where the program has only asked for a trace, and might have called that or not.
    """
    if not jobs.is_initialized() or _is_of_dataset(function):
        return
    try:
        known = _traces_of(function)
        if not known:
            _remember_job()
            _remember_untraced(function)
        if not known or not are_added():
            return
        found = [within_function(one._inference_function.name.decode()) for one in known]
    except Exception as problem:
        world().abort(f"a function of TensorFlow has failed, and its operations are not known: {problem!r}")
        return
    # Where the function may have other traces, it might have come to another one, with other operations.
    is_sure = called and (isinstance(function, ConcreteFunction) or function.input_signature is not None)
    within = Within(
        lines=frozenset().union(*(one.lines for one in found)),
        certain=frozenset.intersection(*(one.certain for one in found)) if is_sure else frozenset(),
        steps=dict.fromkeys((ranks for one in found for ranks in one.steps), None),
    )
    since, begun = _starts.value, _begun(within)
    _tell_untraced(function, within, since, begun)
    _give_up(within, since, begun, error)


_install()
