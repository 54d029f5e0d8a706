"""Calls that the other ranks wait for to their end: what becomes of them when an exception breaks one off."""

from __future__ import annotations

import contextlib
import functools
import inspect
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

from slipstream._core import GuardedCall, QuickEntry, begun, begun_by, close_block, open_block
from slipstream.base.arguments import find_mistake
from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership.group import Group

__all__ = [
    "Together",
    "abort_broken_off",
    "abort_interrupted",
    "found_by_all",
    "guarded_call",
    "is_foreign",
    "whole",
]

_MARK = "_slipstream_found_by_all"
# GuardedCall sets it: the number of the latest guarded call that an exception left, and the id of its traceback then.
_JUDGED = "_slipstream_judged"
_FORGETS_ITS_CALLER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OF_WRONG_ARGUMENTS = TypeError, AttributeError, ValueError, RuntimeError  # PyTorch raises the last
_E = TypeVar("_E", bound=Exception)
_F = TypeVar("_F", bound=Callable[..., Any])


def found_by_all(error: _E) -> _E:
    """Marks an error that every rank of the group raises at this point, so that none waits for another."""
    setattr(error, _MARK, True)
    return error


def _abort(group: Group, how: str) -> None:
    rank = group.native.ranks[group.rank]
    group.session.abort(
        f"rank {rank} {how}, which the other ranks cannot complete without it: leave the job and join it anew"
    )


def _interrupted(error: BaseException, operation: str) -> str:
    return f"was interrupted inside {operation} ({type(error).__name__})"


class Together:
    """``with Together(group, "all_gather"):`` around operations that belong together.

    An exception between them would leave the other ranks waiting for the rest, or taking this rank's next operation
    for it. That may be KeyboardInterrupt, what another signal handler raises, or an argument that is wrong on this
    rank alone. So it ends the session on all ranks, with the reason, and goes on. These end nothing: errors of the
    session, errors that `found_by_all` marks, and wrong arguments (ValueError, TypeError) before the first operation.
    ``waits``: they are none of the call's own, which has yet to begin: it only waits for earlier ones. ``before``: how
    many of them have begun already.

    A signal's handler may raise before ``__exit__`` has judged: then the guarded call around this one judges, and takes
    the operations as not begun.
    """

    __slots__ = ("_before", "_begun", "_group", "_operation", "_outer", "_waits")

    def __init__(self, group: Group, operation: str, *, waits: bool = False, before: int = 0) -> None:
        self._group = group
        self._operation = operation
        self._waits = waits
        self._before = before

    def __enter__(self) -> None:
        self._begun = begun() - self._before
        self._outer = open_block()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._judge(error)
        finally:
            close_block(self._outer, error is None and not self._waits)

    def _judge(self, error: BaseException) -> None:
        if getattr(error, _MARK, False):
            return
        if isinstance(error, SlipstreamError) and not is_foreign(error):
            return
        how = _interrupted(error, self._operation)
        if isinstance(error, ValueError | TypeError):
            if begun() == self._begun:
                return
            how = f"gave up inside {self._operation} ({type(error).__name__}: {error})"
        _abort(self._group, how)


def whole(
    group_of: Callable[..., Group],
    name: str = "",
    checks: Mapping[str, Callable[[str, Any], Any]] | None = None,
    quick: QuickEntry | None = None,
) -> Callable[[_F], _F]:
    """Decorates an operation that users call: a signal handler may break it off before the engine has it.

    Arguments are checked and copied first, and that can take long. The operation would then be missing on this rank
    alone, and its next one would be taken for it. So the session ends on all ranks, as by `Together`. Once the engine
    has the operation it goes on, whatever becomes of the call. ``group_of``: the group, from the call's arguments.
    ``name``: what the reason calls the operation; its own by default. ``checks``: of arguments, by name, if the call
    fails (`find_mistake`). ``quick``: what does the operation without Python, where it can.
    """

    def decorate(operation: _F) -> _F:
        def broken_off(error: BaseException, call: int, args: Any, kwargs: Any) -> TypeError | None:
            abort_broken_off(error, call, name or operation.__name__, lambda: group_of(*args, **kwargs))
            wrong = isinstance(error, _OF_WRONG_ARGUMENTS) and not isinstance(error, SlipstreamError)
            mistake = find_mistake(operation, args, kwargs, checks) if wrong and checks is not None else None
            if mistake is not None:
                mistake.__cause__ = None  # as `raise mistake from None` does
            return mistake

        return guarded_call(operation, broken_off, quick)

    return decorate


def guarded_call(
    function: _F,
    broken_off: Callable[[BaseException, int, tuple[Any, ...], dict[str, Any]], BaseException | None],
    quick: QuickEntry | None = None,
) -> _F:
    """``function``, from its first instruction on: ``broken_off`` gets each exception that leaves it.

    With it come the number of the call and its arguments. ``broken_off`` may return another exception to raise instead.
    It raises nothing itself: if a signal's handler raises in it, it is called again, and that exception goes on.
    ``quick`` is tried before ``function``, and guarded like it.
    """
    return functools.update_wrapper(GuardedCall(function, broken_off, quick), function)  # type: ignore[return-value]


def abort_broken_off(error: BaseException, call: int, operation: str, group: Callable[[], Group]) -> None:
    """Ends the session if ``error`` broke off the call of ``operation`` from outside, before the engine had it.

    ``call``: its number. Of calls in each other the innermost decides, unless a signal's handler has made it.
    """
    if not begun_by(call) and not _judged_inside(error, call):
        abort_interrupted(error, operation, group)


def _judged_inside(error: BaseException, call: int) -> bool:
    """Whether the exception left a guarded call inside this one, and no signal handler made that call."""
    number, inner = getattr(error, _JUDGED, (0, 0))
    if number <= call:  # the same instance left an earlier call
        return False
    between: list[FrameType] = []
    for trace in _traces(error):
        if id(trace) == inner:
            return not _has_handler(between)
        between.append(trace.tb_frame)
    return False


def abort_interrupted(error: BaseException, operation: str, group: Callable[[], Group]) -> None:
    """Ends the session if ``error`` came into ``operation`` from outside, as `is_foreign` says."""
    if is_foreign(error):
        with contextlib.suppress(SlipstreamError):  # there is no session
            _abort(group(), _interrupted(error, operation))


def is_foreign(error: BaseException) -> bool:
    """Whether the call raises it on this rank alone: it is no Exception, or a signal handler raised it.

    A function of the trace is a signal handler if it is registered as one, or was given a frame: a handler may have
    taken itself away, or be called by one that is no Python. What an argument's own methods raise is an error of the
    call like a wrong argument. If the call caught an exception of a handler, and raised this one instead, that counts.
    """
    return not isinstance(error, Exception) or _has_handler([*_frames(error)])


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The functions that the exception left, and those that the exceptions left which the call caught before it."""
    inside: set[FrameType] = set()
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        frames = [trace.tb_frame for trace in _traces(found)]
        if inside and not (frames and (frames[0] in inside or _is_finished_generator(frames[0]))):
            return  # it was caught outside the call, which was made in an `except`
        yield from frames
        inside.update(frames)
        seen.add(id(found))
        found = found.__context__


def _is_finished_generator(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & _FORGETS_ITS_CALLER) and frame.f_back is None


def _traces(error: BaseException) -> Iterator[TracebackType]:
    """The exception's way through the functions that it left, from the outermost one.

    An instance that is raised again has the trace of the time before at the end of the new one: that is not given.
    """
    trace = error.__traceback__
    caller = None
    while trace is not None:
        frame = trace.tb_frame
        if caller in (None, frame, frame.f_back) or frame.f_code.co_flags & _FORGETS_ITS_CALLER:
            caller = frame
        elif frame.f_back is not None:
            return  # without: it stands for a function that Cython has compiled
        yield trace
        trace = trace.tb_next


def _has_handler(frames: Sequence[FrameType]) -> bool:
    # The second look takes ten times as long, and a timer's next signal may come meanwhile.
    return any(map(_was_given_a_frame, frames)) or _has_registered({frame.f_code for frame in frames})


def _has_registered(codes: Set[CodeType]) -> bool:
    return any(_code(signal.getsignal(number)) in codes for number in range(1, signal.NSIG))


def _was_given_a_frame(frame: FrameType) -> bool:
    if str(frame.f_globals.get("__name__")).partition(".")[0] == "slipstream":
        return False
    code = frame.f_code
    named = code.co_argcount + code.co_kwonlyargcount
    others = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: named + others]
    found = map(frame.f_locals.get, names) if names else ()
    return any(isinstance(one, FrameType) or _holds_a_frame(one) for one in found)


def _holds_a_frame(value: Any) -> bool:
    return type(value) is tuple and any(isinstance(one, FrameType) for one in value)


def _code(handler: Any) -> CodeType | None:
    """What a signal handler runs: a function, a method, a partial of one, or an object that can be called."""
    if isinstance(handler, signal.Handlers):
        return None  # SIG_DFL, SIG_IGN
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        handler = getattr(handler, "__func__", None) or vars(type(handler)).get("__call__")
    return getattr(handler, "__code__", None)
