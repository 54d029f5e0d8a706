"""Element types and reductions, by the codes that the native core and the wire use (native/base/dtype.h)."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from slipstream.base.misspelt import did_you_mean

__all__ = [
    "BLOCK_FIELDS",
    "BLOCK_NUMBERS",
    "WIRE_NAMES",
    "DType",
    "Op",
    "WireType",
    "as_op",
    "as_wire",
    "from_numpy",
    "itemsize",
    "lone_field",
    "to_numpy",
    "wire_share",
]


class DType(IntEnum):
    """An element type. One of Q8 (block-int8) is a block of 64 numbers: a scale and 64 int8."""

    F64 = 0
    F32 = 1
    F16 = 2
    BF16 = 3
    F8E4M3 = 4
    F8E5M2 = 5
    I8 = 6
    I16 = 7
    I32 = 8
    I64 = 9
    U8 = 10
    U16 = 11
    U32 = 12
    U64 = 13
    BOOL = 14
    C64 = 15
    C128 = 16
    Q8 = 17


class Op(IntEnum):
    """A reduction. AVG divides the sum by the group's size (integers truncate toward zero)."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class WireType(IntEnum):
    """As what float32 data travels between hosts; F16, F8 and INT8 in blocks of 256 numbers, each with a scale."""

    EXACT = 0
    BF16 = 1
    F16 = 2
    F8 = 3
    INT8 = 4


WIRE_NAMES = tuple(wire.name.lower() for wire in WireType)  # "exact", then those with fewer bits
_WIRE_BYTES = (1024, 512, 516, 260, 260)  # of 256 numbers


def wire_share(wire: int) -> float:
    """The bytes that data takes on this wire, as a part of what it has."""
    return _WIRE_BYTES[wire] / _WIRE_BYTES[0]


def as_wire(wire: int | str | None) -> WireType:
    """The wire type of that name, such as ``"int8"``; EXACT for None, ValueError if there is none.

    >>> as_wire("bf16")
    <WireType.BF16: 1>
    """
    try:
        if isinstance(wire, str):
            return WireType[wire.upper()]
        return WireType.EXACT if wire is None else WireType(wire)
    except (KeyError, ValueError):
        names = [one.name.lower() for one in WireType]
        meant = did_you_mean(str(wire), names)
        raise ValueError(f"{wire!r} is no wire type: take one of {', '.join(names)}{meant}") from None


def as_op(op: Op | str) -> Op:
    """The reduction of that name, such as ``"max"``; ValueError if there is none."""
    try:
        return op if type(op) is Op else Op[op.upper()] if isinstance(op, str) else Op(op)
    except (KeyError, ValueError):
        names = ", ".join(one.name.lower() for one in Op)
        meant = "; did you mean avg?" if op in ("mean", "average") else ""
        raise ValueError(f"{op!r} is no reduction: take one of {names}{meant}") from None


_SIZES = (8, 4, 2, 2, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16, 68)

BLOCK_NUMBERS = 64
BLOCK_FIELDS = [("scale", "<f4"), ("values", "|i1", (BLOCK_NUMBERS,))]  # a block as NumPy describes it

_NUMPY = {
    "float64": DType.F64,
    "float32": DType.F32,
    "float16": DType.F16,
    "bfloat16": DType.BF16,  # ml_dtypes names these three
    "float8_e4m3fn": DType.F8E4M3,
    "float8_e5m2": DType.F8E5M2,
    "int8": DType.I8,
    "int16": DType.I16,
    "int32": DType.I32,
    "int64": DType.I64,
    "uint8": DType.U8,
    "uint16": DType.U16,
    "uint32": DType.U32,
    "uint64": DType.U64,
    "bool": DType.BOOL,
    "complex64": DType.C64,
    "complex128": DType.C128,
}
# Types that NumPy does not have by itself: a record of one field of that name carries their bits.
_LONE_FIELDS = {
    name: [(name, f"<i{size}")] for name, size in (("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1))
}
_seen: dict[Any, DType] = {}  # by NumPy dtype: asking one for its name takes longer than a small all-reduce
_NAMES = {code: name for name, code in _NUMPY.items()}


def lone_field(name: str) -> Any:
    """The fields of the NumPy dtype that stands for a type NumPy lacks, by its name; None for all others."""
    return _LONE_FIELDS.get(name)


itemsize: Callable[[int], int] = _SIZES.__getitem__
"""Bytes of one element, by dtype code. No function of Python's: each operation asks, and a frame costs it 1 %."""


def from_numpy(dtype: Any) -> DType:
    """The code of a NumPy dtype; TypeError if it has none, or is not in native byte order."""
    code = _seen.get(dtype)
    if code is None:
        code = _NUMPY.get(dtype.name)
        if dtype.names:
            lone = lone_field(dtype.names[0])
            code = DType.Q8 if dtype == BLOCK_FIELDS else _NUMPY[dtype.names[0]] if dtype == lone else None
        if code is None or not dtype.isnative:
            known = "block_int8 and " + ", ".join(sorted(_NUMPY))
            raise TypeError(
                f"slipstream cannot communicate dtype {dtype!r}; it takes these, in native byte order: {known}"
            )
        _seen[dtype] = code
    return code


def name_of(dtype: int) -> str:
    """For people: "float32"."""
    return "block_int8" if dtype == DType.Q8 else _NAMES[DType(dtype)]


def to_numpy(dtype: DType) -> Any:
    """The NumPy (or ml_dtypes) name of a code, the fields of blocks: what NumPy makes a dtype of."""
    return BLOCK_FIELDS if dtype is DType.Q8 else _NAMES[dtype]
