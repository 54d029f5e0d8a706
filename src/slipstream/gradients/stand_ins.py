"""What takes part in the steps of other ranks for an exchange that this rank lacks: it has no gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import DType, itemsize
from slipstream.comm.collectives.adasum import Vectors
from slipstream.comm.membership.group import Group
from slipstream.gradients.buckets import Bucket, Parameter
from slipstream.gradients.changes import ChangeExchange
from slipstream.gradients.compression import way_of
from slipstream.gradients.exchange import GradientExchange
from slipstream.gradients.numbers import TakesPart, Told
from slipstream.gradients.policy import Policy

__all__ = ["may_start_sparse", "stand_in_of"]

StartsSparse = Callable[[DType, Sequence[int], Group], Callable[[], None]]

_starts_sparse: list[StartsSparse] = []


def may_start_sparse(start: StartsSparse) -> None:
    """A face of a framework: ``start`` gives no rows to a sparse gradient of this dtype and shape of other ranks.

    It returns what waits for the end.
    """
    _starts_sparse.append(start)


def stand_in_of(group: Group, told: Told) -> TakesPart:
    """One for the exchange of ``group`` that other ranks have told of."""
    reference = weakref.ref(group)

    def there() -> Group:
        found = reference()
        assert found is not None
        return found

    return _of_changes(told, there) if told["same"]["kind"] == "changes" else _of_gradients(told, there)


def _of_changes(told: Told, group: Callable[[], Group]) -> ChangeExchange:
    vectors = [
        Vectors(np.zeros(sum(counts) * itemsize(code), np.uint8), DType(code), tuple(counts))
        for code, counts in told["same"]["vectors"]
    ]
    return ChangeExchange(vectors, told["same"]["parameters"], group, stands_in=True)


def _of_gradients(told: Told, group: Callable[[], Group]) -> GradientExchange:
    same = told["same"]
    ways = {index: way_of(way) for index, (*_, way) in enumerate(same["travel"])}
    made = GradientExchange(
        _Nothing(told, group),
        len(same["travel"]),
        group=group,
        op=same["op"],
        prescale=same["prescale"],
        postscale=same["postscale"],
        passes=told["passes"],
        groups=same["groups"],
        policy=Policy(
            way_of(same["compression"]), lambda _: False, ways
        ),  # which are sensitive has been decided
        overlaps=same["overlaps"],
        most=same["most"],
        stands_in=True,
    )
    made.stand_in(told)
    return made


class _Nothing:
    """`slipstream.gradients.exchange.Gradients` of a rank that has none: parameters as they have been told."""

    def __init__(self, told: Told, group: Callable[[], Group]) -> None:
        self._described: list[str] = told["same"]["parameters"]
        self._marks: list[int] = told["marks"]
        self._parameters = [
            Parameter(index, count, DType(code), name, tuple(shape))
            for index, (name, shape, count, code, _) in enumerate(told["same"]["travel"])
        ]
        self._group = group
        self._memory: dict[int, NDArray[np.uint8]] = {}

    def watch(self, ready: Callable[..., None]) -> None:
        """There is no backward."""

    def detach(self) -> None:
        """Nothing."""

    def describe(self) -> list[str]:
        return self._described

    def marks(self) -> list[int]:
        return self._marks

    def sparse(self) -> list[bool]:
        return [False] * len(self._parameters)

    def parameter(self, index: int) -> Parameter:
        return self._parameters[index]

    def place(self, bucket: Bucket) -> None:
        for place in bucket.places:
            start = place.address - bucket.address
            size = place.parameter.count * itemsize(bucket.dtype)
            self._memory[place.parameter.index] = bucket.memory[start : start + size]

    def drop(self) -> None:
        """There are none."""

    def write(self, index: int) -> None:
        self._memory[index][...] = 0

    def read(self, index: int) -> None:
        """Nobody wants it."""

    def start_sparse(self, index: int) -> Callable[[], None]:
        parameter = self._parameters[index]
        if not _starts_sparse:
            raise RuntimeError(
                f"other ranks have a sparse gradient of {self._described[index]}, and no framework of this rank knows "
                "such: import the same modules on all ranks before join"
            )
        return _starts_sparse[0](parameter.dtype, parameter.shape, self._group())
