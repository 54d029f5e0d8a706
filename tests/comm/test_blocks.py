"""Block-int8 arrays of numbers and back, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import slipstream
from comm.expected import numbers_of, quantized
from slipstream.base.dtypes import DType, from_numpy, itemsize


def numbers(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(count).standard_normal(count).astype(np.float32)


def test_the_dtype() -> None:
    assert from_numpy(slipstream.BLOCK_INT8) is DType.Q8
    assert slipstream.BLOCK_INT8.itemsize == itemsize(DType.Q8) == 68


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 5000])
def test_the_way_there_and_back(count: int) -> None:
    x = numbers(count)
    found = slipstream.quantize(x)
    padded = np.zeros(-(-count // 64) * 64, dtype=np.float32)
    padded[:count] = x
    expected = quantized(padded.reshape(-1, 64))
    assert found.tobytes() == expected.tobytes()
    back = slipstream.dequantize(found, count)
    assert back.tobytes() == numbers_of(expected).reshape(-1)[:count].tobytes()
    assert slipstream.dequantize(found).size == padded.size
    assert (np.abs(back - x) <= 0.5001 * np.repeat(found["scale"], 64)[:count]).all()


def test_what_people_have() -> None:
    x = numbers(600).reshape(20, 30)
    whole = slipstream.quantize(x)
    assert slipstream.quantize(x.astype(np.float64)).tobytes() == whole.tobytes()
    assert slipstream.quantize(x.T).tobytes() == slipstream.quantize(x.T.copy()).tobytes()
    assert slipstream.quantize(memoryview(x.reshape(-1))).tobytes() == whole.tobytes()
    assert slipstream.quantize(np.float32(3)).size == 1
    out = np.zeros_like(x)
    assert slipstream.dequantize(whole, out=out) is out
    assert out.tobytes() == slipstream.dequantize(whole, 600).tobytes()
    assert slipstream.dequantize(whole[::2]).tobytes() == slipstream.dequantize(whole[::2].copy()).tobytes()
    x[3, 5] = np.nan
    assert np.isnan(slipstream.dequantize(slipstream.quantize(x), 600)).sum() == 64


def test_what_does_not_fit() -> None:
    whole = slipstream.quantize(numbers(600))
    for bad in (np.zeros(3, dtype=np.complex64), whole):
        with pytest.raises(TypeError):
            slipstream.quantize(bad)
    with pytest.raises(TypeError):
        slipstream.dequantize(numbers(68))
    for count in (-1, 641):
        with pytest.raises(ValueError, match="do not hold"):
            slipstream.dequantize(whole, count)
    locked = np.zeros(600, dtype=np.float32)
    locked.flags.writeable = False
    for out in (np.zeros(600), np.zeros(1200, dtype=np.float32)[::2], locked):
        with pytest.raises(ValueError, match="out must be"):
            slipstream.dequantize(whole, out=out)
    with pytest.raises(ValueError, match="out must be"):
        slipstream.dequantize(whole, 599, out=np.zeros(600, dtype=np.float32))
