"""The ways in which gradients travel in fewer bits, as data: what each of them is called, and what it takes."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

from slipstream.base.arguments import as_number
from slipstream.base.dtypes import WIRE_NAMES, DType, name_of
from slipstream.base.misspelt import did_you_mean

__all__ = [
    "BF16",
    "EXACT",
    "FP16",
    "Cast",
    "PowerSGD",
    "TopK",
    "Way",
    "Wire",
    "as_data",
    "is_floating_point",
    "kind_of",
    "way_of",
]

_NARROW = ("f8", "int8")  # wires of fewer bits than any floating-point dtype of a gradient
_FLOATING_POINT = frozenset((DType.F64, DType.F32, DType.F16, DType.BF16, DType.F8E4M3, DType.F8E5M2))
_SAVES = 2  # how many times fewer numbers PowerSGD must send of a matrix


def is_floating_point(dtype: DType) -> bool:
    """Whether numbers of this dtype may be rounded."""
    return dtype in _FLOATING_POINT


@dataclass(frozen=True)
class Cast:
    """Floating-point gradients travel as ``to`` (None: as they are), also within a host; all others as they are.

    Sums of 16-bit gradients are formed in float32.
    """

    to: DType | None

    def dtype(self, own: DType) -> DType:
        """The dtype in which gradients of the dtype ``own`` lie in a bucket."""
        return own if self.to is None or not is_floating_point(own) else self.to

    def takes(self, own: DType, shape: tuple[int, ...]) -> bool:
        """Whether gradients of this dtype and shape can go this way."""
        return True

    def __str__(self) -> str:
        return "exact" if self.to is None else name_of(self.to)


@dataclass(frozen=True)
class Wire:
    """Between hosts float32 sums travel by the engine's wire ``name``, not "exact"; within a host they are exact.

    ``feedback``: what rounding takes from a gradient of this rank is added to the next one.
    """

    name: str
    feedback: bool = False

    def __post_init__(self) -> None:
        fewer = WIRE_NAMES[1:]
        if self.name not in fewer:
            meant = did_you_mean(str(self.name), fewer)
            raise ValueError(f"{self.name!r} is no wire: take one of {', '.join(fewer)}{meant}")

    def dtype(self, own: DType) -> DType:
        """The dtype in which gradients of the dtype ``own`` lie in a bucket."""
        return DType.F32

    def takes(self, own: DType, shape: tuple[int, ...]) -> bool:
        """Whether gradients of this dtype and shape can go this way, and gain by it."""
        return own is DType.F32 or (self.name in _NARROW and is_floating_point(own))

    def __str__(self) -> str:
        return f"{self.name} between hosts{' with error feedback' if self.feedback else ''}"


@dataclass(frozen=True)
class TopK:
    """Of each gradient the largest numbers travel, a share of ``ratio``; the others wait in the residual.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (2017); error feedback as in Stich et
    al., "Sparsified SGD with Memory" (2018).
    """

    ratio: float

    def __post_init__(self) -> None:
        ratio = as_number("the ratio of top-k", self.ratio)
        if not 0 < ratio < 1:
            raise ValueError(f"top-k takes a ratio above 0 and below 1, such as 0.01 for 1 %, not {ratio:g}")

    def dtype(self, own: DType) -> DType:
        """The dtype in which gradients of the dtype ``own`` lie in a bucket."""
        return DType.F32

    def takes(self, own: DType, shape: tuple[int, ...]) -> bool:
        """Whether gradients of this dtype and shape can go this way."""
        return is_floating_point(own) and math.prod(shape) < 1 << 32

    def count(self, size: int) -> int:
        """How many of ``size`` numbers travel."""
        return min(size, math.ceil(self.ratio * size))

    def __str__(self) -> str:
        return f"top-k of {100 * self.ratio:g} %"


@dataclass(frozen=True)
class PowerSGD:
    """Of each gradient that is a matrix, or can be seen as one, two factors of ``rank`` columns travel.

    Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression" (2019).
    """

    rank: int

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise ValueError(f"PowerSGD takes a rank of at least 1, not {self.rank!r}")

    def dtype(self, own: DType) -> DType:
        """The dtype in which gradients of the dtype ``own`` lie in a bucket."""
        return DType.F32

    def takes(self, own: DType, shape: tuple[int, ...]) -> bool:
        """Whether gradients of this dtype and shape can go this way, and gain by it."""
        if not is_floating_point(own) or len(shape) < 2 or not math.prod(shape):
            return False
        rows, columns = shape[0], math.prod(shape[1:])
        return (rows + columns) * self.rank * _SAVES < rows * columns

    def __str__(self) -> str:
        return f"PowerSGD of rank {self.rank}"


Way: TypeAlias = Cast | Wire | TopK | PowerSGD


def kind_of(way: Way | None) -> str:
    """What a saved state says of the way that remembered it: "none" for ways that remember nothing."""
    if isinstance(way, TopK):
        return "top-k"
    if isinstance(way, PowerSGD):
        return "PowerSGD"
    return f"{way.name} with error feedback" if isinstance(way, Wire) and way.feedback else "none"


def as_data(way: Way) -> list[Any]:
    """A way as other ranks are told of it.

    >>> as_data(Wire("int8"))
    ['Wire', 'int8', False]
    """
    return [type(way).__name__, *astuple(way)]


def way_of(data: list[Any]) -> Way:
    """What `as_data` has made a list of.

    >>> way_of(["TopK", 0.01])
    TopK(ratio=0.01)
    """
    kind, *fields = data
    if kind == "Cast":
        return Cast(None if fields[0] is None else DType(fields[0]))
    return {"Wire": Wire, "TopK": TopK, "PowerSGD": PowerSGD}[kind](*fields)  # type: ignore[no-any-return]


EXACT = Cast(None)
FP16 = Cast(DType.F16)
BF16 = Cast(DType.BF16)
