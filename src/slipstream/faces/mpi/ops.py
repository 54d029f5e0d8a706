"""The reductions of MPI, and the status of a message."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.base.dtypes import Op as Reduction

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BAND",
    "BOR",
    "BXOR",
    "LAND",
    "LOR",
    "LXOR",
    "MAX",
    "MIN",
    "PROC_NULL",
    "PROD",
    "SUM",
    "UNDEFINED",
    "Op",
    "Status",
]

ANY_SOURCE, ANY_TAG, PROC_NULL, UNDEFINED = -1, -1, -2, -32766


class Op:
    """A predefined reduction. ``code``: the engine's; ``logical``: of truth values, whatever the dtype.

    Calling it reduces two objects: ``MPI.SUM(2, 3)``.
    """

    def __init__(
        self, name: str, code: Reduction, two: Callable[[Any, Any], Any], *, logical: bool = False
    ) -> None:
        self.name, self.code, self.logical = f"MPI_{name}", code, logical
        self._two = two

    def __call__(self, x: Any, y: Any) -> Any:
        return self._two(x, y)

    def __repr__(self) -> str:
        return f"<mpi4py.MPI.Op of slipstream: {self.name}>"

    is_predefined = True

    def Is_commutative(self) -> bool:
        """True: all predefined reductions are."""
        return True


SUM = Op("SUM", Reduction.SUM, operator.add)
PROD = Op("PROD", Reduction.PROD, operator.mul)
MAX = Op("MAX", Reduction.MAX, max)
MIN = Op("MIN", Reduction.MIN, min)
BAND = Op("BAND", Reduction.BAND, operator.and_)
BOR = Op("BOR", Reduction.BOR, operator.or_)
BXOR = Op("BXOR", Reduction.BXOR, operator.xor)
LAND = Op("LAND", Reduction.BAND, lambda x, y: bool(x) and bool(y), logical=True)
LOR = Op("LOR", Reduction.BOR, lambda x, y: bool(x) or bool(y), logical=True)
LXOR = Op("LXOR", Reduction.BXOR, lambda x, y: bool(x) != bool(y), logical=True)


class Status:
    """What is known of a message once it has been received: its source, its tag, its bytes.

    ``address``: of three 64-bit integers, which the native receive writes (native/xla/messages.h).
    """

    def __init__(self) -> None:
        self._values = np.array([ANY_SOURCE, ANY_TAG, 0], np.int64)
        self.address = self._values.ctypes.data

    def Get_source(self) -> int:
        """The rank that has sent it."""
        return int(self._values[0])

    def Get_tag(self) -> int:
        """Its tag."""
        return int(self._values[1])

    def Get_error(self) -> int:
        """0: a receive that fails raises."""
        return 0

    def Get_count(self, datatype: Any = None) -> int:
        """Its bytes; ``datatype`` must be left out."""
        if datatype is not None:
            raise NotImplementedError("slipstream has no datatypes of MPI: Get_count() gives bytes")
        return int(self._values[2])

    source = property(Get_source)
    tag = property(Get_tag)
    error = property(Get_error)
    count = property(Get_count)
