"""What is asked for of a line: all of an all-reduce or a broadcast but its arrays."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Asked", "broadcast_from", "sum_by"]

_ALL_REDUCE, _BROADCAST = 1, 4  # as slipstream.h has them

Asked: TypeAlias = tuple[int, int, int, float, float, str, bool]
"""Collective, operation, root, factors before and after, what errors call it, and whether it asks: as `_core.MxnetLine`
takes them. Where it asks, the ranks compare shapes, dtypes and arguments before it begins, and the job goes on if they
differ; else that ends the job."""


def sum_by(op: int, name: str | None, scales: tuple[float, float], asks: bool = True) -> Asked:
    """An all-reduce; ``op``: the engine's code."""
    return _ALL_REDUCE, op, 0, *scales, f"allreduce {name!r}" if name else "", asks


def broadcast_from(root: int, name: str | None) -> Asked:
    """A broadcast; ``root``: its place in the group."""
    return _BROADCAST, 0, root, 1.0, 1.0, f"broadcast {name!r}" if name else "", True
