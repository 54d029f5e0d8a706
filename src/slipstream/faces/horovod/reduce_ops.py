"""Horovod's reduce operations, in the engine's terms."""

from __future__ import annotations

from slipstream.base.dtypes import Op

__all__ = [
    "ENGINE_OPS",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "choose_op",
    "engine_op",
    "op_name",
]

# Horovod's numbers, which scripts may have stored.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

_NAMES = "Average", "Sum", "Adasum", "Min", "Max", "Product"

ENGINE_OPS = (int(Op.AVG), int(Op.SUM), -1, int(Op.MIN), int(Op.MAX), int(Op.PROD))
"""The engine's code by Horovod's number; -1: the engine has none."""


def choose_op(op: int | None, average: bool | None) -> int:
    """What Horovod makes of ``op`` and the older ``average``; ValueError when both are given."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return op
    return Average if average is None or average else Sum


def engine_op(op: int) -> int:
    """The engine's code of a Horovod operation; NotImplementedError for Adasum, else ValueError."""
    if op == Adasum:
        raise NotImplementedError(
            "Adasum is for allreduce, grouped_allreduce and DistributedOptimizer: use Average or Sum"
        )
    if isinstance(op, bool) or not isinstance(op, int) or not 0 <= op <= Product:
        raise ValueError(f"op must be one of Average, Sum, Adasum, Min, Max, Product, not {op!r}")
    return ENGINE_OPS[op]


def op_name(op: int) -> str:
    """What scripts call the operation of this number."""
    return _NAMES[op]
