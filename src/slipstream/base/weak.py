"""Methods to hand on without holding on to their object."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec

__all__ = ["weakly"]

_P = ParamSpec("_P")


def weakly(method: Callable[_P, None]) -> Callable[_P, None]:
    """Calls a bound method as long as its object lives, and does nothing after that.

    >>> found = [1]
    >>> clear = weakly(Clearing(found).clear)  # nothing else holds that object
    >>> clear()
    >>> found
    [1]
    """
    reference = weakref.WeakMethod(method)

    def call(*args: _P.args, **kwargs: _P.kwargs) -> None:
        alive = reference()
        if alive is not None:
            alive(*args, **kwargs)

    return call
