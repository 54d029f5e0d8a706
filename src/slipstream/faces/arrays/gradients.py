"""Lists of gradients, reduced step after step: what frameworks hand over once backward has made all of them.

A list of the same shapes, dtypes and names goes through the same exchange in every step, so its buckets, and what
compressions owe, last. Ranks must bring the same lists in the same order.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from slipstream.base.dtypes import name_of
from slipstream.comm.membership.group import Group
from slipstream.faces.arrays import starting
from slipstream.faces.arrays.operands import Array, code_of, dtype_of, new_array
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Adasum, Average, engine_op
from slipstream.faces.horovod.words import adding_words
from slipstream.gradients.agreement import description
from slipstream.gradients.buckets import Bucket, Parameter
from slipstream.gradients.compression import Cast, Way
from slipstream.gradients.exchange import GradientExchange
from slipstream.gradients.policy import Policy
from slipstream.gradients.reductions import check_sums
from slipstream.gradients.wires import check_unscaled

__all__ = ["Terms", "groups_of", "is_alone", "names_of", "reduce_gradients"]

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Terms:
    """What is asked of the reduction: Horovod's ``op``; with Average, a factor before the sum (1/``predivide``).

    ``way``: as what gradients travel, None for the job's wire. ``groups``: numbers of gradients that share a bucket.
    ValueError if these do not go together.
    """

    op: int = Average
    predivide: float = 1.0
    way: Way | None = None
    groups: Groups = ()
    process_set: ProcessSet = global_process_set

    def __post_init__(self) -> None:
        if self.op != Adasum:
            engine_op(self.op)
        if not 0 < self.predivide < float("inf"):
            raise ValueError(f"gradient_predivide_factor must be a positive number, not {self.predivide:g}")
        if self.predivide != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if self.op != Adasum and self.way is not None and not isinstance(self.way, Cast):
            check_sums(self.way, engine_op(self.op))
            check_unscaled(self.way, 1.0 / self.predivide)

    def with_groups(self, groups: Groups) -> Terms:
        """The same, with these groups."""
        return self if groups == self.groups else replace(self, groups=groups)


def names_of(variables: Iterable[Any]) -> list[str]:
    """What variables are called; "" for each if that does not tell them apart: Keras has many a "kernel"."""
    names = [str(getattr(one, "path", None) or getattr(one, "name", "")) for one in variables]
    return names if all(names) and len(set(names)) == len(names) else [""] * len(names)


def groups_of(groups: Any, variables: Sequence[Any]) -> Groups:
    """A number of groups, or lists of variables, as numbers of the variables; parts of about one length for a number.

    Variables of the groups that are not among ``variables`` are left out.
    """
    if not groups or not variables:
        return ()
    if not isinstance(groups, list | tuple):
        count = min(int(groups), len(variables))
        ends = [number * len(variables) // count for number in range(count + 1)]
        return tuple(tuple(range(low, high)) for low, high in pairwise(ends))
    number_of = {id(one): number for number, one in enumerate(variables)}
    return tuple(tuple(number_of[id(one)] for one in group if id(one) in number_of) for group in groups)


def is_alone(process_set: ProcessSet) -> bool:
    """Whether this rank has nobody to exchange gradients with."""
    return not process_set.included() or process_set.size() == 1


class _Arrays:
    """`slipstream.gradients.exchange.Gradients` of arrays."""

    def __init__(self, like: Sequence[Array], names: Sequence[str]) -> None:
        self._shapes = [one.shape for one in like]
        self._codes = [code_of(one) for one in like]
        self._names = names
        self._views: dict[int, Array] = {}
        self._ready: Callable[..., None] = _nobody
        self.given: list[Array | None] = [None] * len(like)
        self.results: list[Any] = [None] * len(like)

    def watch(self, ready: Callable[..., None]) -> None:
        self._ready = ready

    def detach(self) -> None:
        self._ready = _nobody

    def describe(self) -> list[str]:
        kinds = zip(self._names, self._shapes, self._codes, strict=True)
        return [description(name, shape, name_of(code)) for name, shape, code in kinds]

    def marks(self) -> list[int]:
        return []

    def sparse(self) -> list[bool]:
        return [False] * len(self._shapes)

    def parameter(self, index: int) -> Parameter:
        shape, code = self._shapes[index], self._codes[index]
        count = 1
        for size in shape:
            count *= size
        return Parameter(index, count, code, self._names[index], shape)

    def place(self, bucket: Bucket) -> None:
        dtype = dtype_of(bucket.dtype)
        for place in bucket.places:
            index, start = place.parameter.index, place.address - bucket.address
            flat = bucket.memory[start : start + place.parameter.count * dtype.itemsize].view(dtype)
            self._views[index] = flat.reshape(self._shapes[index])

    def drop(self) -> None:
        self.given = [None] * len(self._shapes)

    def write(self, index: int) -> None:
        given = self.given[index]
        self._views[index][...] = 0 if given is None else given

    def read(self, index: int) -> None:
        if self.given[index] is None:  # of a rank that has joined
            return
        result = new_array(self._shapes[index], dtype_of(self._codes[index]))
        result[...] = self._views[index]
        self.results[index] = result

    def start_sparse(self, index: int) -> Callable[[], None]:
        raise AssertionError(f"{self._names[index]} is not sparse")

    def fill(self, arrays: Sequence[Array]) -> None:
        """Takes a step's gradients; the last of a model come first in backward, so these do here."""
        self.given = list(arrays)
        for index in reversed(range(len(arrays))):
            self._ready(index)

    def take(self) -> list[Array]:
        """The reduced ones, which this forgets."""
        found, self.results = self.results, [None] * len(self.results)
        self.drop()
        return found


def _nobody(*_: object) -> None:
    return None


class _Exchange:
    """The exchange of lists of one kind."""

    def __init__(self, arrays: Sequence[Array], names: Sequence[str], terms: Terms) -> None:
        process_set = terms.process_set
        scales = (1.0 / terms.predivide, terms.predivide) if terms.op == Average else (1.0, 1.0)
        self._lock = threading.Lock()
        self._arrays = _Arrays(arrays, names)
        self._exchange = GradientExchange(
            self._arrays,
            len(arrays),
            group=lambda: process_set.group,
            op=engine_op(terms.op),
            prescale=scales[0],
            postscale=scales[1],
            passes=1,
            groups=terms.groups,
            policy=Policy(terms.way),
        )

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        with self._lock, adding_words():
            self._arrays.fill(arrays)
            self._exchange.synchronize()
            return self._arrays.take()


_exchanges: weakref.WeakKeyDictionary[Group, dict[Any, _Exchange]] = weakref.WeakKeyDictionary()


def reduce_gradients(arrays: Sequence[Array], names: Sequence[str], terms: Terms) -> list[Array]:
    """Reduces a list of gradients over the process set; every rank of it calls this. Returns new arrays.

    ``names``: for errors and the timeline, all "" if some are not known. Raises Mismatch where ranks bring lists that
    differ, another SlipstreamError when the job has failed.
    """
    if not arrays:
        return []
    if terms.op == Adasum:
        given = starting.grouped_all_reduce(arrays, None, Adasum, 1.0, 1.0, terms.process_set)
        return given.wait()  # type: ignore[no-any-return]
    kinds = tuple((one.shape, one.dtype) for one in arrays)
    key = kinds, tuple(names), terms.op, terms.predivide, terms.way, terms.groups
    known = _exchanges.setdefault(terms.process_set.group, {})
    found = known.get(key)
    if found is None:
        found = known[key] = _Exchange(arrays, names, terms)
    return found(arrays)
