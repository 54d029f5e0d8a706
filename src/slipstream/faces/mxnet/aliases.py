"""MXNet 1.9 names types that NumPy 1.24 has dropped, and cannot be imported there without them."""

from __future__ import annotations

import builtins

import numpy as np

__all__ = ["NAMES", "restore"]

NAMES = "bool", "int", "float", "complex", "object", "str"


def restore() -> None:
    """Gives NumPy the names that it lacks: for Python's own types, which they were. NumPy 2 has a `bool` of its own."""
    for name in NAMES:
        if name not in vars(np):
            setattr(np, name, getattr(builtins, name))
