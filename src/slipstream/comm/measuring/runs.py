"""Operations that all ranks run to measure what they take, and to agree on that."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.plan.registry import build
from slipstream.plan.steps import Plan

__all__ = ["Runs", "compiled", "fresh_memory", "seconds_of"]

_CHUNK = 256 << 10


def compiled(plan: Plan, split: bool = False) -> _core.Plan:
    """``split``: reducers take what part they can."""
    return _core.Plan.compile(plan.rank, plan.size, plan.blocks, *plan.encode(), split=split)


def fresh_memory(nbytes: int) -> NDArray[np.uint8]:
    """Zeros. Not of the heap: that would keep the memory when it is free."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=np.uint8)


class Runs:
    """Operations of ``group``, all ranks of ``session``; every rank makes the same calls."""

    def __init__(self, session: _core.Session, group: _core.Group) -> None:
        self._session, self._group = session, group
        self.doubling = compiled(build("all_reduce", "recursive_doubling", group.rank, len(group.ranks)))

    def run(
        self,
        plan: _core.Plan,
        source: NDArray[Any],
        target: NDArray[Any],
        dtype: DType,
        op: int,
        operation: str,
    ) -> None:
        """Runs ``plan`` on two arrays, which may be one. ``op``: an `Op`, or -1."""
        request = _core.Request(
            group=self._group,
            plan=plan,
            operation=f"{operation}/measured",
            dtype=dtype,
            op=op,
            chunk_bytes=_CHUNK,
        )
        memory = source.ctypes.data, target.ctypes.data
        self._session.run(request, *memory, source.size, keep=(source, target))

    def agree(self, values: NDArray[np.float64], op: Op) -> NDArray[np.float64]:
        """The same array on all ranks: of what they give, element by element."""
        result = np.array(values, dtype=np.float64)
        self.run(self.doubling, result, result, DType.F64, op, "all_reduce")
        return result

    def slowest(self, run: Callable[[], object]) -> float:
        """Seconds that ``run`` takes on the slowest rank."""
        return float(self.agree(np.array([seconds_of(run)]), Op.MAX)[0])


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds that a call takes on this rank."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
