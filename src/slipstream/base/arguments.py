"""Numbers that callers pass to public functions, and the errors of what is none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, SupportsFloat

__all__ = ["as_number", "as_seconds", "seconds_of"]


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
    shape = tuple(getattr(value, "shape", ()))
    got = f"an array of shape {shape}" if shape else type(value).__name__
    raise TypeError(f"{name} must be {wanted}, not {got}") from cause


def as_seconds(name: str, value: Any) -> float:
    """``value`` as a float from 0 to 1e9; TypeError, or ValueError below 0, that names the argument ``name``."""
    seconds = as_number(name, value, "a number of seconds")
    if not seconds >= 0:  # or a NaN
        raise ValueError(f"{name} must be 0 s or more, not {seconds:g} s")
    return min(seconds, 1e9)


def seconds_of(name: str, value: Any) -> float:
    """The seconds of a timedelta; TypeError that names the argument ``name`` for anything else."""
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} must be a timedelta, not {type(value).__name__}")
    return value.total_seconds()
