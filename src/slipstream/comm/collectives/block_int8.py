"""Block-int8: arrays of blocks of 64 numbers, each with one scale. Their all-reduce moves 68 bytes instead of 256. With

    total = slipstream.all_reduce(slipstream.quantize(x))

`dequantize` makes numbers of ``total`` again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.base.dtypes import BLOCK_FIELDS, BLOCK_NUMBERS, DType
from slipstream.comm.collectives.buffers import Buffer, view

__all__ = ["BLOCK_INT8", "dequantize", "quantize"]

BLOCK_INT8: np.dtype[Any] = np.dtype(BLOCK_FIELDS)
"""The dtype of a block, 68 bytes: ``scale`` (float32) and ``values`` (64 int8). It stands for scale * values."""


def quantize(x: Buffer) -> NDArray[Any]:
    """The numbers of ``x``, in C order, as a 1-D array of blocks (dtype `BLOCK_INT8`); zeros fill the last.

    Each number comes back with an error of at most half its block's scale, which is the largest magnitude in the
    block / 127. A block with NaN or infinity in it comes back as NaN; one whose scale would be below 2^-125, as
    zeros. ``x`` is any real array (computed in float32); TypeError for a complex one.

    >>> slipstream.quantize(numpy.ones(64)).nbytes
    68
    """
    array = view(x)
    if array.dtype.kind == "c" or array.dtype.names is not None:
        raise TypeError(f"slipstream cannot quantize dtype {array.dtype!r}")
    numbers = np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
    whole, rest = divmod(numbers.size, BLOCK_NUMBERS)
    blocks: NDArray[Any] = np.empty(whole + (rest > 0), dtype=BLOCK_INT8)
    _core.cast(DType.F32, DType.Q8, blocks.ctypes.data, numbers.ctypes.data, whole)
    if rest:
        last = np.zeros(BLOCK_NUMBERS, dtype=np.float32)
        last[:rest] = numbers[whole * BLOCK_NUMBERS :]
        _core.cast(DType.F32, DType.Q8, blocks[whole:].ctypes.data, last.ctypes.data, 1)
    return blocks


def dequantize(
    blocks: NDArray[Any], count: int | None = None, *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """The first ``count`` numbers of an array of blocks as float32: 1-D, or in the shape of ``out``.

    ``count`` is by default the size of ``out``, or all there are. Raises TypeError unless ``blocks`` has the dtype
    `BLOCK_INT8`, ValueError if it holds fewer numbers or ``out`` is not C-contiguous, writable float32 of ``count``.

    >>> total = slipstream.all_reduce(slipstream.quantize(numpy.ones(64)))
    >>> slipstream.dequantize(total, 3)
    array([2., 2., 2.], dtype=float32)
    """
    if not isinstance(blocks, np.ndarray) or blocks.dtype != BLOCK_INT8:
        got = getattr(blocks, "dtype", type(blocks).__name__)
        raise TypeError(f"blocks must be an array of blocks, of slipstream.quantize, not {got}")
    if count is None:
        count = blocks.size * BLOCK_NUMBERS if out is None else out.size
    if not 0 <= count <= blocks.size * BLOCK_NUMBERS:
        raise ValueError(f"{blocks.size} blocks do not hold {count} numbers")
    if out is None:
        out = np.empty(count, dtype=np.float32)
    if out.dtype != np.float32 or out.size != count or not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(f"out must be C-contiguous, writable float32 with {count} elements")
    source = np.ascontiguousarray(blocks).reshape(-1)
    whole, rest = divmod(count, BLOCK_NUMBERS)
    _core.cast(DType.Q8, DType.F32, out.ctypes.data, source.ctypes.data, whole)
    if rest:
        last = np.empty(BLOCK_NUMBERS, dtype=np.float32)
        _core.cast(DType.Q8, DType.F32, last.ctypes.data, source[whole:].ctypes.data, 1)
        out.reshape(-1)[-rest:] = last[:rest]
    return out
