"""Arrays of any kind as NumPy views, for collectives to take: NumPy, the buffer protocol, DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import DType, from_numpy
from slipstream.comm import job

__all__ = ["Buffer", "contiguous", "empty", "view", "writable"]

Buffer = Any
"""A NumPy array, or anything that NumPy or DLPack can view: memoryview, array.array, a CPU tensor."""


def view(x: Buffer) -> NDArray[Any]:
    """``x`` as a NumPy array that shares its memory where it has any; TypeError if there is no way."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "__dlpack__") and not isinstance(x, np.generic):
        return np.from_dlpack(x)
    # NumPy would take bytes for text
    array = np.asarray(memoryview(x) if isinstance(x, bytes) else x)
    if array.dtype == object:
        raise TypeError(
            f"slipstream cannot communicate {type(x).__name__}: not an array, buffer or DLPack tensor"
        )
    return array


def contiguous(x: Buffer) -> tuple[NDArray[Any], DType]:
    """``x`` as a C-contiguous array (copied only if it must be) with the code of its dtype."""
    array = view(x)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array, from_numpy(array.dtype)


def writable(out: Buffer, shape: tuple[int, ...], like: NDArray[Any]) -> NDArray[Any]:
    """``out`` as an array to write into; ValueError unless it has this shape and dtype and is C-contiguous."""
    array = view(out)
    if array.shape != shape or array.dtype != like.dtype:
        raise ValueError(f"out is {array.dtype}{list(array.shape)}, the result is {like.dtype}{list(shape)}")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("out must be C-contiguous and writable")
    return array


def empty(shape: int | tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """An uninitialised array in memory that the ranks of this host share: collectives on it copy nothing.

    Each such array is a mapping of its own (4 KiB pages): use it for large, long-lived buffers.
    Raises ValueError for a negative dimension, TypeError for a dtype that cannot be communicated.
    """
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(n < 0 for n in dims):
        raise ValueError(f"negative dimension in {list(dims)}")
    kind = np.dtype(dtype)
    from_numpy(kind)
    nbytes = int(np.prod(dims, dtype=np.int64)) * kind.itemsize
    memory = job.current().session.allocate(max(nbytes, 1))
    array: NDArray[Any] = memory[:nbytes].view(kind).reshape(dims)
    return array
