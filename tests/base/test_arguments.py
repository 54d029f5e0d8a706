"""What callers pass that is no number, or no time: the error names it."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import slipstream
from slipstream.base.arguments import as_number, as_seconds, check_int, find_mistake, seconds_of


@pytest.mark.parametrize("value", [2, 2.0, True + 1, np.float32(2), np.array(2), Fraction(2)])
def test_numbers_of_any_kind_are_taken(value: Any) -> None:
    assert as_number("prescale", value) == as_seconds("timeout", value) == 2.0


@pytest.mark.parametrize(
    ("value", "got"),
    [("1", "str"), (None, "NoneType"), ([1], "list"), (1j, "complex"), (timedelta(1), "timedelta")],
)
def test_what_is_no_number_is_named(value: Any, got: str) -> None:
    with pytest.raises(TypeError, match=rf"^timeout must be a number of seconds, not {got}$"):
        as_seconds("timeout", value)


def test_an_array_is_named_with_its_shape() -> None:
    with pytest.raises(TypeError, match=r"^prescale must be one number, not an array of shape \(2, 3\)$"):
        as_number("prescale", np.ones((2, 3)))
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"^prescale must be one number, not an array of shape \(2,\)$"):
        as_number("prescale", torch.ones(2))


def test_why_a_number_could_not_be_had_stays_the_cause() -> None:
    class Broken:
        def __float__(self) -> float:
            raise RuntimeError("the device is gone")

    with pytest.raises(TypeError, match=r"^prescale must be one number, not Broken$") as caught:
        as_number("prescale", Broken())
    assert str(caught.value.__cause__) == "the device is gone"


def test_an_integer_beyond_floats_is_named() -> None:
    with pytest.raises(ValueError, match=r"^prescale is too large: "):
        as_number("prescale", 10**400)


def test_a_time_is_from_0_to_a_limit() -> None:
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match=r"^timeout must be 0 s or more, not (-1|nan) s$"):
            as_seconds("timeout", wrong)
    assert as_seconds("timeout", float("inf")) == 1e9


def test_a_timedelta_is_no_number() -> None:
    assert seconds_of("timeout", timedelta(minutes=1)) == 60
    with pytest.raises(TypeError, match=r"^timeout must be a timedelta, not float$"):
        seconds_of("timeout", 60.0)


def test_public_functions_name_a_timeout_that_is_none() -> None:
    wrong: Any = "1"
    slipstream.init()
    try:
        calls = (
            lambda: slipstream.all_reduce(np.ones(1), async_op=True).wait(wrong),
            lambda: slipstream.world().shrink(timeout=wrong),
        )
        for call in calls:
            with pytest.raises(TypeError, match=r"^timeout must be a number of seconds, not str$"):
                call()
    finally:
        slipstream.shutdown()
    with pytest.raises(TypeError, match=r"^start_timeout must be a number of seconds, not str$"):
        slipstream.run(abs, args=[1], start_timeout=wrong)


def test_the_error_of_a_call_that_does_not_fit_its_signature_stays_pythons() -> None:
    def call(root: int = 0) -> None: ...

    checks = {"root": check_int}
    assert find_mistake(call, (), {"wrong": 1}, checks) is None
    assert find_mistake(call, (0, 1), {}, checks) is None
    assert str(find_mistake(call, ("0",), {}, checks)) == "root must be an int, not str"
