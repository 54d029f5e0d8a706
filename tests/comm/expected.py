"""What operations must give, by NumPy: shared by the scripts that run as ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

import ml_dtypes
import numpy as np

from slipstream.base.dtypes import BLOCK_NUMBERS, DType, Op, to_numpy

UFUNCS = {
    Op.SUM: np.add,
    Op.PROD: np.multiply,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
    Op.AVG: np.add,
    Op.BAND: np.bitwise_and,
    Op.BOR: np.bitwise_or,
    Op.BXOR: np.bitwise_xor,
}


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    name = to_numpy(dtype)
    return np.dtype(name if dtype is DType.Q8 else getattr(ml_dtypes, name, name))


def blocks(rank: int, count: int) -> np.ndarray[Any, Any]:
    """Blocks with the same values on all ranks, 127 among them, and with a scale that 1 to 8 ranks divide: so the
    scale of a sum is the sum of the scales, whatever the order, and that of an average is whole."""
    i = np.arange(count, dtype=np.int64)
    found = np.zeros(count, dtype=numpy_dtype(DType.Q8))
    found["scale"] = 840 * (1 + (i + rank * 5) % 7)
    found["values"] = (i[:, None] * 13 + np.arange(BLOCK_NUMBERS) * 37) % 255 - 127
    found["values"][:, 0] = 127
    return found


def quantized(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What block-int8 makes of float32: one block of each row of 64. Rows of finite numbers, not all zero."""
    largest = np.abs(numbers).max(axis=1, keepdims=True)
    found = np.zeros(len(numbers), dtype=numpy_dtype(DType.Q8))
    found["scale"] = largest[:, 0] / np.float32(127)
    found["values"] = np.rint(numbers * (np.float32(127) / largest))
    return found


def numbers_of(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The float32 numbers of blocks, a row of each."""
    return blocks["scale"][:, None] * blocks["values"].astype(np.float32)


def data(rank: int, count: int, dtype: DType, op: Op | None = None) -> np.ndarray[Any, Any]:
    """What ``rank`` contributes: any rank can compute it."""
    i = np.arange(count, dtype=np.int64)
    if dtype is DType.Q8:
        return blocks(rank, count)
    if dtype is DType.BOOL:
        return ((i * 7 + rank * 3) % 5 < 2).astype(bool)
    if op is Op.PROD:
        values = 1 + (i + rank) % 2 * (rank < 3)  # at most 2^3
    elif op in (Op.SUM, Op.AVG, None):
        values = (i + rank) % 2 if dtype in (DType.F8E4M3, DType.F8E5M2) else (i * 3 + rank * 5) % 7
    else:
        values = (i * 13 + rank * 29) % 8
    result = values.astype(numpy_dtype(dtype))
    if dtype in (DType.C64, DType.C128):
        result = result + 1j * result[::-1]
    return np.ascontiguousarray(result.astype(numpy_dtype(dtype)))


def reduce_arrays(inputs: Sequence[np.ndarray[Any, Any]], dtype: DType, op: Op) -> np.ndarray[Any, Any]:
    """The reduction of whole numbers so small that it is exact in ``dtype``."""
    n = len(inputs)
    if dtype is DType.Q8:
        total = inputs[0].copy()
        total["scale"] = np.sum([x["scale"] for x in inputs], axis=0) / (n if op is Op.AVG else 1)
        return total
    if dtype is DType.BOOL:
        ufunc = {
            Op.PROD: np.logical_and,
            Op.MIN: np.logical_and,
            Op.BAND: np.logical_and,
            Op.BXOR: np.logical_xor,
        }
        return fold(ufunc.get(op, np.logical_or), inputs)
    total = fold(UFUNCS[op], inputs)
    if op is not Op.AVG:
        return total.astype(inputs[0].dtype)
    if np.issubdtype(total.dtype, np.integer):
        return (np.sign(total) * (np.abs(total) // total.dtype.type(n))).astype(total.dtype)
    parts = {DType.F64: np.float64, DType.C128: np.float64, DType.C64: np.float32}.get(dtype)
    if (
        parts is not None
    ):  # both parts of a complex number by themselves: NumPy would multiply by a rounded 1/n
        return (total.view(parts) / parts(n)).view(total.dtype)
    return (total.astype(np.float32) / np.float32(n)).astype(total.dtype)


def same(what: str, got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Raises AssertionError unless shape, dtype and every bit agree."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise AssertionError(f"{what}: {got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}")
    if (
        got.dtype.kind == "c"
    ):  # the sign of a zero depends on the order in which complex numbers are multiplied
        got, expected = got + 0, expected + 0
    if not np.array_equal(_bytes(got), _bytes(expected)):
        wrong = np.flatnonzero(_bytes(got) != _bytes(expected))
        i = int(wrong[0]) // got.dtype.itemsize
        raise AssertionError(
            f"{what}: element {i} is {got.reshape(-1)[i]}, expected {expected.reshape(-1)[i]}"
        )


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A view where possible."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
