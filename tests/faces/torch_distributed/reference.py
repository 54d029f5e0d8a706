"""Inputs that every rank knows of all ranks, in all layouts, and what reductions of them must give."""

from __future__ import annotations

import functools
import operator

import torch
import torch.distributed as dist

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
INTEGERS = (*SIGNED, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *EIGHT_BITS, *INTEGERS, torch.bool, *COMPLEX)
LAYOUTS = ("flat", "strided", "transposed", "offset")

_TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.float8_e4m3fn: 0.13,
    torch.float8_e5m2: 0.26,
    torch.complex64: 1e-5,
    torch.complex128: 1e-12,
}


def values(rank: int, dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """The contiguous input of a rank: small numbers, so that no reduction of them overflows."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    whole = torch.randint(0, 4, shape, generator=generator)
    if dtype in COMPLEX:
        return torch.complex(whole.double(), torch.randint(0, 4, shape, generator=generator).double()).to(
            dtype
        )
    if dtype is torch.bool:
        return whole % 2 == 0
    return whole.to(dtype)


def laid_out(plain: torch.Tensor, layout: str) -> torch.Tensor:
    """A tensor with the values of ``plain`` (2-dimensional), lying differently in memory."""
    rows, columns = plain.shape
    if layout == "strided":
        wide = torch.zeros(rows, 2 * columns, dtype=plain.dtype)
        wide[:, ::2] = plain
        return wide[:, ::2]
    if layout == "transposed":
        return plain.t().contiguous().t()
    if layout == "offset":
        room = torch.zeros(plain.numel() + 3, dtype=plain.dtype)
        room[3:] = plain.reshape(-1)
        return room[3:].view(rows, columns)
    return plain.clone()


def can_reduce(dtype: torch.dtype, op: str) -> bool:
    """Whether a reduction has a meaning for a dtype (and slipstream must do it)."""
    if op in ("BAND", "BOR", "BXOR"):
        return dtype in INTEGERS or dtype is torch.bool
    if dtype in COMPLEX:
        return op in ("SUM", "AVG")
    if dtype is torch.bool:
        return op in ("SUM", "PRODUCT", "MIN", "MAX")
    return True


_BOOL = {"SUM": operator.or_, "MAX": operator.or_, "BOR": operator.or_, "BXOR": operator.xor}
_FUNCTIONS = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def reduced(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """What a reduction of the inputs must give, computed in 64 bits."""
    dtype = inputs[0].dtype
    if dtype is torch.bool:
        return functools.reduce(_BOOL.get(op, operator.and_), inputs)
    exact = torch.complex128 if dtype in COMPLEX else torch.int64 if dtype in INTEGERS else torch.float64
    wide = [tensor.to(exact) for tensor in inputs]
    if op == "AVG":
        total = functools.reduce(torch.add, wide)
        mean = total // len(wide) if exact is torch.int64 else total / len(wide)
        return mean.to(dtype)
    return functools.reduce(_FUNCTIONS[op], wide).to(dtype)


def close(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """AssertionError with ``what`` unless the two agree: exactly, or as well as the dtype allows."""
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)} is not {tuple(expected.shape)}"
    tolerance = _TOLERANCE.get(expected.dtype, 0.0)
    wide = torch.complex128 if expected.dtype in COMPLEX else torch.float64 if tolerance else torch.int64
    torch.testing.assert_close(
        actual.to(wide),
        expected.to(wide),
        rtol=tolerance,
        atol=tolerance,
        msg=lambda m: f"{what} on rank {dist.get_rank()}: {m}",
    )
