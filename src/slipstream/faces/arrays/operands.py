"""NumPy arrays as operations take and make them."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream._core import address_of
from slipstream.base.dtypes import DType, from_numpy, to_numpy

__all__ = [
    "ALIGNMENT",
    "Array",
    "code_of",
    "code_of_dtype",
    "dtype_of",
    "factor_for",
    "is_aligned",
    "new_array",
]

Array: TypeAlias = NDArray[Any]

ALIGNMENT = 64
"""Bytes: where the memory of an array begins that a framework takes over without a copy."""

_FLOATS = frozenset((DType.F32, DType.F16, DType.BF16, DType.F8E4M3, DType.F8E5M2, DType.C64))


def new_array(shape: Sequence[int], dtype: Any) -> Array:
    """An array that nothing has been written to, whose memory begins at a multiple of `ALIGNMENT`."""
    kind = np.dtype(dtype)
    raw = np.empty(prod(shape) * kind.itemsize + ALIGNMENT, np.uint8)
    array: Array = np.ndarray(shape, kind, raw, -address_of(raw) % ALIGNMENT)
    return array


def is_aligned(array: Array) -> bool:
    """Whether its memory begins at a multiple of `ALIGNMENT`."""
    return address_of(array) % ALIGNMENT == 0


def code_of(array: Array) -> DType:
    """The engine's code of an array's dtype; ValueError if it has none."""
    return code_of_dtype(array.dtype)


def code_of_dtype(dtype: Any) -> DType:
    """The engine's code of a NumPy dtype; ValueError if it has none."""
    try:
        return from_numpy(dtype)
    except TypeError as error:
        raise ValueError(f"Tensor type {dtype.name} is not supported.") from error


def dtype_of(code: int) -> Any:
    """The NumPy dtype of a code of the engine."""
    return np.dtype(to_numpy(DType(code)))


def factor_for(code: int, factor: float) -> float:
    """A factor as numbers of this type are multiplied by it: floating-point ones below float64 by a float32."""
    return c_float(factor).value if factor != 1.0 and code in _FLOATS else factor
