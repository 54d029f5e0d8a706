"""Takes the memory of a shared array when it is made, so that a lack of memory is an error and not a signal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream import _core

__all__ = ["reserve"]

_STEP = 64 << 20  # bytes, so that ranks that take memory at the same time see what the others have taken
_LOOKS_FROM = 1 << 20  # of less it is not asked whether there is enough: the answer would take longer


def reserve(memory: NDArray[np.uint8]) -> None:
    """Take all pages of an array that `Session.allocate` has made.

    The kernel would end this process, or another one, when a page is touched that it cannot give. Raises MemoryError
    where there is not enough left for the array, SlipstreamError where the kernel refuses it.
    """
    total = memory.nbytes
    address = _core.address_of(memory)
    for begin in range(0, total, _STEP):
        if total >= _LOOKS_FROM:
            _check(total, begin)
        _core.reserve(address + begin, min(_STEP, total - begin))


def _check(total: int, taken: int) -> None:
    from slipstream.base.free_memory import free_memory  # few arrays are so large

    free = free_memory()
    if free is not None and free.nbytes < total - taken:
        raise MemoryError(
            f"slipstream.empty: an array of {_mib(total)} needs {_mib(total - taken)} more, and {free.where} has "
            f"{_mib(free.nbytes)} left. Make smaller or fewer arrays, or raise the limit"
        )


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"
