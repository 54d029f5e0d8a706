"""The memory of MXNet's arrays, as collectives take it.

MXNet computes in threads of its own. An address may be read once all that writes there is done, and written once all
that reads there is done, too; Python waits for either. No copy is made.
"""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet
import numpy as np
from mxnet.base import _LIB, check_call

from slipstream.base.dtypes import DType, from_numpy, to_numpy
from slipstream.faces.arrays.operands import Array

__all__ = ["Memory"]


class Memory:
    """An array's address, its count of elements and their type's code, once it may be read, or written (``writes``).

    TypeError for what is no array, for sparse arrays, for arrays that are not in the CPU's memory or have none.
    """

    __slots__ = ("address", "array", "count", "dtype", "shape")

    def __init__(self, array: Any, writes: bool = False) -> None:
        if not isinstance(array, mxnet.nd.NDArray):
            raise TypeError(
                f"slipstream.mxnet takes MXNet's NDArrays, not {type(array).__name__}: use mx.nd.array(x)"
            )
        if array.stype != "default":
            raise TypeError(
                f'slipstream.mxnet takes dense arrays, not {array.stype}: use array.tostype("default"), or, for '
                "gradients, layers with sparse_grad=False"
            )
        if array.context.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
            raise TypeError(
                f"slipstream.mxnet takes arrays in the CPU's memory, not {array.context}: "
                "use array.as_in_context(mx.cpu())"
            )
        self.array = array
        self.shape: tuple[int, ...] = array.shape
        self.count = int(np.prod(self.shape, dtype=np.int64))
        self.dtype: DType = from_numpy(np.dtype(array.dtype))
        check_call(
            _LIB.MXNDArrayWaitToWrite(array.handle) if writes else _LIB.MXNDArrayWaitToRead(array.handle)
        )
        pointer = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
        self.address = pointer.value or 0
        if self.count and not self.address:
            raise TypeError(
                "slipstream.mxnet takes arrays that have memory: the shape of this one is not known"
            )

    def view(self) -> Array:
        """A NumPy array on the same memory, which lives as long as that."""
        kind = np.dtype(to_numpy(self.dtype))
        if self.count == 0:
            return np.empty(self.shape, kind)
        raw = (ctypes.c_byte * (self.count * kind.itemsize)).from_address(self.address)
        raw.owner = self.array
        return np.frombuffer(raw, dtype=kind).reshape(self.shape)
