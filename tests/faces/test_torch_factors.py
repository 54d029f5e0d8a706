"""prescale_factor and postscale_factor of every dtype that rounds, against NumPy by the same rules.

float16 and bfloat16: each factor is a float32, the product is one, and is rounded to the type; so is each sum. Integers
are truncated toward zero after each factor and after an average, and saturate at the limits of their type. A product of
64-bit integers has as many bits as they: 20 times 0.7, which is a little less than 14, becomes 13.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

import slipstream.torch as hvd  # noqa: E402

FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
INTEGERS = {"int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}
TYPES = FLOATS | INTEGERS
EXACT = [(1.0, 1.0), (0.5, 4.0), (-2.0, 0.25)]  # of floats: they round nothing
AWKWARD = [(1.0, 0.1), (1 / 3, 1.0), (0.7, 1.3), (2.5, 10.0), (-1.5, 1.0)]
SHAPE = (5, 7)

Numbers = NDArray[Any]  # of float32, or of int64


def numbers_of_all(dtype: Any) -> list[Numbers]:
    """What each rank brings: of few bits, so that sums without factors are exact."""
    found = []
    for rank in range(hvd.size()):
        generator = np.random.default_rng(rank)
        if dtype.is_floating_point:
            found.append((generator.integers(-24, 25, SHAPE) / 8).astype(np.float32))
        else:
            found.append(generator.integers(0 if dtype is torch.uint8 else -20, 21, SHAPE))
    return found


def rounded(numbers: Numbers, dtype: Any) -> Numbers:
    """float32 numbers as the type has them: the nearest, to even."""
    if dtype is torch.float16:
        return numbers.astype(np.float16).astype(np.float32)
    bits = numbers.view(np.uint32)
    even = (bits >> 16) & 1
    return ((bits + 0x7FFF + even) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def scaled(numbers: Numbers, factor: float, dtype: Any) -> Numbers:
    if dtype.is_floating_point:
        return rounded(numbers * np.float32(factor), dtype)
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    wide = np.longdouble if dtype is torch.int64 else np.float64
    products = numbers.astype(wide) * wide(factor)
    whole = [min(max(int(product), least), most) for product in products.flatten()]
    return np.array(whole, np.int64).reshape(numbers.shape)


def averaged(total: Numbers, dtype: Any) -> Numbers:
    if dtype.is_floating_point:
        return rounded(total / np.float32(hvd.size()), dtype)
    return np.sign(total) * (np.abs(total) // hvd.size())


def expected(everyone: list[Numbers], op: int, prescale: float, postscale: float, dtype: Any) -> Numbers:
    """What the operation gives of the whole tensors."""
    inputs = [scaled(one, prescale, dtype) for one in everyone]
    if op == hvd.Max:
        result = np.maximum.reduce(inputs)
    else:
        result = inputs[0]
        for one in inputs[1:]:
            result = rounded(result + one, dtype) if dtype.is_floating_point else result + one
    if op == hvd.Average:
        result = averaged(result, dtype)
    return scaled(result, postscale, dtype)


def as_tensor(numbers: Numbers, dtype: Any) -> Any:
    return torch.from_numpy(numbers).to(dtype)


def share(whole: Any) -> Any:
    """The rows that a reducescatter gives this rank."""
    least, more = divmod(len(whole), hvd.size())
    ends = [0, *accumulate(least + (rank < more) for rank in range(hvd.size()))]
    return whole[ends[hvd.rank()] : ends[hvd.rank() + 1]]


def check_type(name: str, pairs: list[tuple[float, float]]) -> None:
    dtype = TYPES[name]
    everyone = numbers_of_all(dtype)
    mine = as_tensor(everyone[hvd.rank()], dtype)
    for op in (hvd.Sum, hvd.Average, hvd.Max):
        for prescale, postscale in pairs:
            want = as_tensor(expected(everyone, op, prescale, postscale, dtype), dtype)
            options = {"op": op, "prescale_factor": prescale, "postscale_factor": postscale}
            found = {
                "allreduce": (hvd.allreduce(mine, **options), want),
                "allreduce_": (hvd.allreduce_(mine.clone(), **options), want),
                "strided": (hvd.allreduce(mine.t(), **options), want.t()),
                "reducescatter": (hvd.reducescatter(mine, **options), share(want)),
            }
            for number, one in enumerate(hvd.grouped_allreduce([mine, mine[1:]], **options)):
                found[f"grouped_allreduce {number}"] = one, want[number:]
            for number, one in enumerate(hvd.grouped_reducescatter([mine, mine[1:]], **options)):
                found[f"grouped_reducescatter {number}"] = one, share(want[number:])
            for call, (got, right) in found.items():
                assert got.dtype == dtype
                assert torch.equal(got, right), f"{call}, {options}: {got} is not {right}"


@pytest.mark.parametrize("name", TYPES)
def test_on_two_ranks(two: Any, name: str) -> None:
    two(check_type, name, EXACT + AWKWARD)


@pytest.mark.parametrize("name", TYPES)
def test_on_three_ranks(three: Any, name: str) -> None:
    """Where floats are rounded on the way, the sum of three depends on their order."""
    three(check_type, name, EXACT if name in FLOATS else EXACT + AWKWARD)


def check_repeated() -> None:
    """Operations with names: several share a buffer, and the ranks lock their order."""
    for step in range(8):
        handles = {}
        for name, dtype in TYPES.items():
            mine = as_tensor(numbers_of_all(dtype)[hvd.rank()] + (0 if name == "uint8" else step), dtype)
            options = {"op": hvd.Average, "prescale_factor": 0.7, "postscale_factor": 1.3}
            handles[name] = [hvd.allreduce_async(mine, name=f"{name} {i}", **options) for i in range(2)]
        for name, dtype in TYPES.items():
            everyone = [one + (0 if name == "uint8" else step) for one in numbers_of_all(dtype)]
            want = as_tensor(expected(everyone, hvd.Average, 0.7, 1.3, dtype), dtype)
            for handle in handles[name]:
                got = hvd.synchronize(handle)
                assert torch.equal(got, want), f"{name}, step {step}: {got} is not {want}"


def test_operations_with_names(two: Any) -> None:
    two(check_repeated)


def check_types_together() -> None:
    everyone = {name: numbers_of_all(dtype) for name, dtype in TYPES.items()}
    tensors = [as_tensor(everyone[name][hvd.rank()], dtype) for name, dtype in TYPES.items()]
    options = {"op": hvd.Sum, "prescale_factor": 0.7, "postscale_factor": 1.3}
    wanted = [as_tensor(expected(everyone[n], hvd.Sum, 0.7, 1.3, dtype), dtype) for n, dtype in TYPES.items()]
    for got, want in zip(hvd.grouped_allreduce(tensors, **options), wanted, strict=True):
        assert torch.equal(got, want)
    for got, want in zip(hvd.grouped_reducescatter(tensors, **options), wanted, strict=True):
        assert torch.equal(got, share(want))


def test_a_group_of_several_types(two: Any) -> None:
    two(check_types_together)


def check_limits() -> None:
    """Integers end at the limits of their type, also where a factor is negative."""
    limits = {torch.uint8: 200, torch.int32: 2**30, torch.int64: 2**62}
    for dtype, value in limits.items():
        info, x = torch.iinfo(dtype), torch.full((3,), value, dtype=dtype)
        assert hvd.allreduce(x, op=hvd.Max, prescale_factor=3.0).tolist() == [info.max] * 3
        assert hvd.allreduce(x, op=hvd.Min, postscale_factor=-3.0).tolist() == [info.min] * 3


def test_integers_saturate(two: Any) -> None:
    two(check_limits)
