"""`interruption.whole`: which exceptions of a call end the session."""

from __future__ import annotations

import ctypes
import functools
import gc
import pickle
import signal
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import numpy as np
import pytest

from slipstream._core import close_block, open_block
from slipstream.comm.collectives.interruption import Together, guarded_call, whole
from slipstream.gradients import exchange


class Alarm(Exception):
    """What handlers raise."""


STOP = Alarm()  # a handler may raise one instance again and again


class FakeGroup:
    """A group whose session writes down why it was ended."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.rank = 0
        self.native = SimpleNamespace(ranks=[3])
        self.session = SimpleNamespace(abort=self.reasons.append)


@pytest.fixture
def group() -> Iterator[FakeGroup]:
    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGUSR1)}
    yield FakeGroup()
    for number, handler in before.items():
        signal.signal(number, handler)


def _ends(group: FakeGroup, call: Callable[[], Any], error: type[BaseException]) -> int:
    """How often the call, which is whole, ends the session."""
    wrapped = whole(lambda: group)(call)  # type: ignore[arg-type, return-value]
    with pytest.raises(error):
        wrapped()
    ended, group.reasons = list(group.reasons), []
    group.session.abort = group.reasons.append
    return len(ended)


def _signalled() -> None:
    signal.raise_signal(signal.SIGALRM)


def _any_arguments(*_: object, **__: object) -> NoReturn:
    raise STOP.with_traceback(None)


def _takes_itself_away(_number: int, _frame: object) -> NoReturn:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    raise STOP.with_traceback(None)


@pytest.mark.parametrize(
    "handler",
    [
        _any_arguments,
        _takes_itself_away,
        functools.lru_cache(_takes_itself_away),
        lambda *_: _any_arguments(),
    ],
)
def test_the_same_exception_of_a_handler_ends_the_session_in_each_call(
    group: FakeGroup, handler: Callable[..., Any]
) -> None:
    for _ in range(2):
        signal.signal(signal.SIGALRM, handler)
        assert _ends(group, _signalled, Alarm) == 1


class Alarming:
    """Its negative is made without Python code: the signal comes then, and Python looks for it later."""

    __neg__ = staticmethod(functools.partial(getattr(ctypes.CDLL(None), "raise"), int(signal.SIGALRM)))


def _never(*_: object) -> NoReturn:
    raise AssertionError("Python looked for the signal too late")


def test_the_first_instruction_of_a_call_is_in_the_call(group: FakeGroup) -> None:
    signal.signal(signal.SIGALRM, _any_arguments)
    call = whole(lambda *_: group)(_never)  # type: ignore[arg-type, return-value]
    alarming = Alarming()
    with pytest.raises(Alarm):
        call(-alarming)  # type: ignore[operator]
    assert len(group.reasons) == 1


def test_the_first_instruction_of_a_gradient_s_hook_is_in_the_exchange(group: FakeGroup) -> None:
    class FakeExchange:
        ready = _never
        broken: ClassVar[list[BaseException]] = []

        def broken_off(self, error: BaseException) -> None:
            self.broken.append(error)

    signal.signal(signal.SIGALRM, _any_arguments)
    fake, alarming = FakeExchange(), Alarming()
    hook = exchange._ready(fake)  # type: ignore[arg-type]
    with pytest.raises(Alarm):
        hook(-alarming)  # type: ignore[operator]
    assert fake.broken == [STOP]


def test_calls_in_each_other_end_it_once(group: FakeGroup) -> None:
    signal.signal(signal.SIGALRM, _any_arguments)
    assert _ends(group, whole(lambda: group)(_signalled), Alarm) == 1  # type: ignore[arg-type, return-value]


def test_what_an_argument_s_own_method_raises_ends_nothing(group: FakeGroup) -> None:
    class OnDevice:
        def __array__(self, *_: object, **__: object) -> NoReturn:
            raise RuntimeError("no implicit copy to the host")

    assert _ends(group, lambda: np.asarray(OnDevice()), RuntimeError) == 0


def test_an_interrupt_ends_it(group: FakeGroup) -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    assert _ends(group, _signalled, KeyboardInterrupt) == 1


class Second(Exception):
    """What the handler of a second signal raises."""


def _raise_second(*_: object) -> NoReturn:
    raise Second


def _two_signals() -> None:
    """Python finds both at once: it runs the handler of the second one at the next function's first instruction."""
    both = {signal.SIGALRM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, both)
    for number in both:
        signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)


def test_a_second_signal_does_not_keep_the_first_one_from_ending_the_session(group: FakeGroup) -> None:
    assert signal.SIGUSR1 < signal.SIGALRM  # the order in which Python runs their handlers
    signal.signal(signal.SIGUSR1, _any_arguments)
    signal.signal(signal.SIGALRM, _raise_second)
    with pytest.raises(Second) as raised:
        whole(lambda: group)(_two_signals)()  # type: ignore[arg-type, return-value]
    assert raised.value.__context__ is STOP
    assert [reason.partition(",")[0] for reason in group.reasons] == [
        "rank 3 was interrupted inside _two_signals (Alarm)"
    ]


def test_nor_do_many_signals() -> None:
    """As if the handler of a timer's signals raised each time, before the first exception has been judged."""
    left = 1000
    judged: list[BaseException] = []

    def broken_off(error: BaseException, *_: object) -> None:
        nonlocal left
        left -= 1
        if left > 0:
            raise Second(left)
        judged.append(error)

    def fail() -> NoReturn:
        raise STOP.with_traceback(None)

    with pytest.raises(Second) as raised:
        guarded_call(fail, broken_off)()
    assert judged == [STOP]
    assert raised.value.args == (1,)


def test_nor_between_operations_that_belong_together(group: FakeGroup) -> None:
    signal.signal(signal.SIGUSR1, _any_arguments)
    signal.signal(signal.SIGALRM, _raise_second)

    def call() -> None:
        with Together(group, "call"):  # type: ignore[arg-type]
            _begin()
            _two_signals()

    assert _ends(group, call, Second) >= 1


def _begin() -> None:
    """As an operation of the engine would, this begins in the current call."""
    close_block(open_block(), True)


def test_an_operation_that_has_begun_goes_on(group: FakeGroup) -> None:
    signal.signal(signal.SIGALRM, _any_arguments)
    inner = whole(lambda: group)(_begin)  # type: ignore[arg-type, return-value]

    def call() -> None:
        inner()
        _begin()
        inner()
        _signalled()

    assert _ends(group, call, Alarm) == 0


def test_an_operation_inside_it_is_another_one(group: FakeGroup) -> None:
    signal.signal(signal.SIGALRM, _any_arguments)
    inner = whole(lambda: group)(_begin)  # type: ignore[arg-type, return-value]

    def call() -> None:
        inner()
        _signalled()

    assert _ends(group, call, Alarm) == 1


def test_operations_together_that_have_all_begun_go_on(group: FakeGroup) -> None:
    signal.signal(signal.SIGALRM, _any_arguments)

    def call() -> None:
        with Together(group, "call"):  # type: ignore[arg-type]
            _begin()
        _signalled()

    assert _ends(group, call, Alarm) == 0


def test_waiting_for_earlier_operations_begins_none(group: FakeGroup) -> None:
    """As a call does before it copies a strided array that an operation under way may write to."""
    signal.signal(signal.SIGALRM, _any_arguments)

    def call() -> None:
        with Together(group, "call", waits=True):  # type: ignore[arg-type]
            pass
        _signalled()

    assert _ends(group, call, Alarm) == 1


def _ring_key_error(*_: object) -> NoReturn:
    raise KeyError


def _ring_stop_iteration(*_: object) -> NoReturn:
    raise StopIteration


def _looked_up() -> None:
    try:
        _signalled()
    except KeyError:
        raise ValueError("no such entry") from None


def _generated() -> None:
    list(map(bool, (_signalled() for _ in range(1))))  # type: ignore[func-returns-value]


def test_an_exception_of_a_handler_that_the_call_turns_into_another_ends_it(group: FakeGroup) -> None:
    signal.signal(signal.SIGALRM, _ring_key_error)
    assert _ends(group, _looked_up, ValueError) == 1
    signal.signal(signal.SIGALRM, _ring_stop_iteration)
    assert _ends(group, _generated, RuntimeError) == 1


def test_one_that_the_caller_is_handling_does_not(group: FakeGroup) -> None:
    signal.signal(signal.SIGALRM, _any_arguments)

    def fail() -> NoReturn:
        raise ValueError("wrong argument")

    def handling() -> Iterator[None]:
        try:
            _signalled()
        except Alarm:
            assert _ends(group, fail, ValueError) == 0
            yield

    list(handling())
    try:
        _signalled()
    except Alarm:
        assert _ends(group, fail, ValueError) == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_operation_of_the_handler_is_not_that_of_the_call(group: FakeGroup, when: str) -> None:
    other = FakeGroup()

    def handler(*_: object) -> NoReturn:
        if when == "after":
            whole(lambda: other)(_begin)()  # type: ignore[arg-type, return-value]
            raise Alarm
        whole(lambda: other)(_begin_and_raise)()  # type: ignore[arg-type, return-value]

    signal.signal(signal.SIGALRM, handler)
    assert _ends(group, _signalled, Alarm) == 1
    assert not other.reasons


def _begin_and_raise() -> NoReturn:
    _begin()
    raise Alarm


def test_an_exception_that_a_handler_raised_once_may_be_an_error_later(group: FakeGroup) -> None:
    stop = Alarm()

    def handler(*_: object) -> NoReturn:
        raise stop

    def fail() -> NoReturn:
        raise stop

    signal.signal(signal.SIGALRM, handler)
    assert _ends(group, _signalled, Alarm) == 1
    assert _ends(group, fail, Alarm) == 0
    assert _ends(group, _signalled, Alarm) == 1


def test_an_exception_of_a_call_can_be_pickled_and_keeps_nothing(group: FakeGroup) -> None:
    class Memory:
        """Stands for an array of the call that failed."""

    kept: list[weakref.ref[Memory]] = []

    def fail() -> NoReturn:
        memory = Memory()
        kept.append(weakref.ref(memory))
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong") as raised:
        whole(lambda: group)(fail)()  # type: ignore[arg-type, return-value]
    error = raised.value
    assert pickle.loads(pickle.dumps(error)).args == ("wrong",)
    del raised
    error.__traceback__ = None
    gc.collect()
    assert kept[0]() is None


def test_contexts_of_exceptions_make_no_ring() -> None:
    """The handler raises the exception that the call was handling when it failed."""
    stop = Alarm()
    left = 3

    def broken_off(*_: object) -> None:
        nonlocal left
        left -= 1
        if left > 0:
            raise stop

    def fail() -> NoReturn:
        try:
            raise stop
        except Alarm:
            raise KeyError  # noqa: B904 - its context is `stop`

    with pytest.raises(Alarm) as raised:
        guarded_call(fail, broken_off)()
    assert raised.value.__context__ is None
