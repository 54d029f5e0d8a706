"""Numbers that callers pass to public functions, and the errors of what is none."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, SupportsFloat

__all__ = ["as_int", "as_number", "as_seconds", "check_int", "check_text", "find_mistake", "seconds_of"]


def find_mistake(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    checks: Mapping[str, Callable[[str, Any], Any]],
) -> TypeError | None:
    """The error of the first argument of a failed call that has a wrong type, None if all are right.

    None too if the call does not fit its signature: the interpreter has said that already, with the call's name.
    ``checks``, by parameter: raises TypeError if a value is of no use. A call that succeeds costs nothing so.
    """
    try:
        given = inspect.signature(call).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    try:
        for name, value in given.items():
            if name in checks:
                checks[name](name, value)
    except TypeError as error:
        return error
    return None


def check_int(name: str, value: Any) -> None:
    """TypeError that names the argument ``name`` unless it is an integer."""
    try:
        operator.index(value)
    except (TypeError, ValueError, RuntimeError) as error:  # of an array: each library raises another one
        raise TypeError(f"{name} must be an int, not {_describe(value)}") from error


def as_int(value: Any) -> int:
    """An integer of any kind as an int, so that what is equal has one text. TypeError if it is none."""
    return value if type(value) is int else int(operator.index(value))


def check_text(name: str, value: Any) -> None:
    """TypeError that names the argument ``name`` unless it is a string, or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")


def as_number(name: str, value: Any, wanted: str = "one number") -> float:
    """``value`` as a float; errors name the argument.

    TypeError says what ``value`` is instead of ``wanted``, ValueError that it is an integer too large for a float.
    """
    cause: Exception | None = None
    if isinstance(value, SupportsFloat):
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(f"{name} is too large: {error}") from error
        except (TypeError, ValueError, RuntimeError) as error:  # of an array: each library raises another one
            cause = error
    raise TypeError(f"{name} must be {wanted}, not {_describe(value)}") from cause


def _describe(value: Any) -> str:
    shape = tuple(getattr(value, "shape", ()))
    return f"an array of shape {shape}" if shape else type(value).__name__


def as_seconds(name: str, value: Any) -> float:
    """``value`` as a float from 0 to 1e9; TypeError, or ValueError below 0, that names the argument ``name``."""
    wanted = "a number of seconds"
    if isinstance(value, bool):
        raise TypeError(f"{name} must be {wanted}, not bool")
    seconds = as_number(name, value, wanted)
    if not seconds >= 0:  # or a NaN
        raise ValueError(f"{name} must be 0 s or more, not {seconds:g} s")
    return min(seconds, 1e9)


def seconds_of(name: str, value: Any) -> float:
    """The seconds of a timedelta; TypeError that names the argument ``name`` for anything else."""
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} must be a timedelta, not {type(value).__name__}")
    return value.total_seconds()
