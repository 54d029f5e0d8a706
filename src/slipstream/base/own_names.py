"""Names of operations that the library calls for itself: timelines tell them from those of the program."""

from __future__ import annotations

__all__ = ["is_own", "own_name"]

_BEFORE = "slipstream: "


def own_name(purpose: str) -> str:
    """The name of an operation that serves this purpose of the library."""
    return _BEFORE + purpose


def is_own(name: str) -> bool:
    """Whether `own_name` has made this name."""
    return name.startswith(_BEFORE)
