"""`interruption.whole`: which exceptions of a call end the session."""

from __future__ import annotations

import ctypes
import functools
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import numpy as np
import pytest

from slipstream.comm.collectives.interruption import whole
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
    before = signal.getsignal(signal.SIGALRM)
    yield FakeGroup()
    signal.signal(signal.SIGALRM, before)


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
    raise STOP


def _takes_itself_away(_number: int, _frame: object) -> NoReturn:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    raise STOP


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
