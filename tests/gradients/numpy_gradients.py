"""The framework of the tests: gradients are NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import Op, from_numpy
from slipstream.comm.membership.group import Group
from slipstream.gradients.agreement import description
from slipstream.gradients.buckets import Bucket, Parameter
from slipstream.gradients.compression import EXACT
from slipstream.gradients.exchange import GradientExchange

__all__ = ["Array", "Arrays", "exchange"]

Array = NDArray[np.floating]


class Arrays:
    """`slipstream.gradients.exchange.Gradients` of arrays."""

    def __init__(self, values: list[Array]) -> None:
        self.values = values
        self.gradients: list[Array | None] = [None] * len(values)
        self.views: dict[int, Array] = {}
        self.ready: Callable[[int], None] = lambda _: None

    def watch(self, ready: Callable[[int], None]) -> None:
        self.ready = ready

    def detach(self) -> None:
        self.ready = lambda _: None

    def describe(self) -> list[str]:
        return [description(f"p{i}", value.shape, str(value.dtype)) for i, value in enumerate(self.values)]

    def marks(self) -> list[int]:
        return []

    def sparse(self) -> list[bool]:
        return [False] * len(self.values)

    def parameter(self, index: int) -> Parameter:
        value = self.values[index]
        return Parameter(index, value.size, from_numpy(value.dtype), f"p{index}", value.shape)

    def place(self, bucket: Bucket) -> None:
        for place in bucket.places:
            value = self.values[place.parameter.index]
            start = place.address - bucket.address
            dtype = value.dtype if bucket.way == EXACT else np.dtype(np.float32)
            flat = bucket.memory[start : start + value.size * dtype.itemsize].view(dtype)
            self.views[place.parameter.index] = flat.reshape(value.shape)

    def drop(self) -> None:
        self.gradients = [None] * len(self.values)

    def write(self, index: int) -> None:
        gradient = self.gradients[index]
        self.views[index][...] = 0 if gradient is None else gradient

    def read(self, index: int) -> None:
        self.gradients[index] = self.views[index].astype(self.values[index].dtype)

    def start_sparse(self, index: int) -> Callable[[], None]:
        raise AssertionError(f"{index} is not sparse")

    def backward(self, factor: float, order: list[int]) -> None:
        """Makes a gradient of each parameter in this order: its number, times the factor."""
        for index in order:
            self.gradients[index] = np.full_like(self.values[index], factor * (index + 1))
            self.ready(index)


def exchange(arrays: Arrays, group: Group, **options: Any) -> GradientExchange:
    """Averages them, unless ``options`` say otherwise."""
    given: dict[str, Any] = {"op": int(Op.AVG), "prescale": 1.0, "postscale": 1.0, "passes": 1, "groups": []}
    return GradientExchange(arrays, len(arrays.values), group=lambda: group, **(given | options))
