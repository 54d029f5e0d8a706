"""One of three ranks whose framework is NumPy, in a job beside that of `slipstream.init`, which is never called.

exchange_rank.py average: gradients of several steps are averaged; prints "averaged"
exchange_rank.py differ: rank 1 has another shape; prints the error
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import Op, from_numpy
from slipstream.base.errors import Mismatch
from slipstream.comm.membership import job
from slipstream.comm.membership.group import Group
from slipstream.gradients.agreement import description
from slipstream.gradients.buckets import Bucket, Parameter
from slipstream.gradients.exchange import GradientExchange

Array = NDArray[np.floating]

UNUSED = 3
STEPS = 3


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

    def sparse(self) -> list[bool]:
        return [False] * len(self.values)

    def parameter(self, index: int) -> Parameter:
        value = self.values[index]
        return Parameter(index, value.size, from_numpy(value.dtype), f"p{index}")

    def place(self, bucket: Bucket) -> None:
        for place in bucket.places:
            value = self.values[place.parameter.index]
            start = place.address - bucket.address
            flat = bucket.memory[start : start + value.nbytes].view(value.dtype)
            self.views[place.parameter.index] = flat.reshape(value.shape)

    def drop(self) -> None:
        raise AssertionError("nobody joins")

    def write(self, index: int) -> None:
        gradient = self.gradients[index]
        self.views[index][...] = 0 if gradient is None else gradient

    def read(self, index: int) -> None:
        self.gradients[index] = self.views[index].copy()

    def start_sparse(self, index: int) -> Callable[[], None]:
        raise AssertionError(f"{index} is not sparse")

    def backward(self, factor: float, order: list[int]) -> None:
        """Makes a gradient of each parameter in this order: its number, times the factor."""
        for index in order:
            self.gradients[index] = np.full_like(self.values[index], factor * (index + 1))
            self.ready(index)


def exchange(arrays: Arrays, group: Group, passes: int = 1) -> GradientExchange:
    return GradientExchange(
        arrays,
        len(arrays.values),
        group=lambda: group,
        op=int(Op.AVG),
        prescale=1.0,
        postscale=1.0,
        passes=passes,
        groups=[],
    )


def check_average(group: Group) -> None:
    shapes = [((7, 3), "f4"), ((5,), "f8"), ((), "f4"), ((4,), "f4"), ((300_000,), "f4")]
    arrays = Arrays([np.zeros(shape, dtype) for shape, dtype in shapes])
    reducing = exchange(arrays, group)
    used = [i for i in range(len(shapes)) if i != UNUSED]
    for step in range(STEPS):
        shift = (group.rank + step) % len(used)
        arrays.gradients[UNUSED] = None
        arrays.backward(group.rank + 1.0, used[shift:] + used[:shift])
        assert reducing.touched
        reducing.synchronize()
        assert not reducing.touched
        mean = sum(range(1, group.size + 1)) / group.size
        for i, gradient in enumerate(arrays.gradients):
            assert gradient is not None
            assert gradient.shape == arrays.values[i].shape
            assert (gradient == (0 if i == UNUSED else mean * (i + 1))).all(), (step, i, gradient)
    del reducing
    arrays.ready(0)  # the exchange is gone, and parameters may outlive it


def check_passes(group: Group) -> None:
    arrays = Arrays([np.zeros(3)])
    reducing = exchange(arrays, group, passes=2)
    for _ in range(2):
        arrays.backward(1.0, [0])
        arrays.backward(4.0, [0])
        reducing.synchronize()
        assert (arrays.gradients[0] == 4.0).all()


def main() -> None:
    entered = job.enter()
    group = Group(job=entered)
    if sys.argv[1] == "differ":
        arrays = Arrays([np.zeros(2), np.zeros(4 if group.rank == 1 else 3)])
        reducing = exchange(arrays, group)
        try:
            reducing.synchronize()
        except Mismatch as error:
            print(error, flush=True)
    else:
        check_average(group)
        check_passes(group)
        assert not job.is_initialized()
        print("averaged", flush=True)
    entered.close()


main()
