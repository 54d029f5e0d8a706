"""Lists of gradients, reduced step after step: at once, when backward has made all of them, or in parts before.

A list of the same shapes, dtypes and names goes through the same exchange in every step, so its buckets, and what
compressions owe, last. Ranks must bring the same lists in the same order. Their parts need not be the same.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from slipstream.base.dtypes import name_of
from slipstream.comm.membership.group import Group
from slipstream.faces.arrays import starting
from slipstream.faces.arrays.operands import Array, code_of_dtype, dtype_of, new_array
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Adasum, Average, engine_op
from slipstream.faces.horovod.words import adding_words
from slipstream.gradients.agreement import description
from slipstream.gradients.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, Parameter
from slipstream.gradients.compression import Cast, Way
from slipstream.gradients.exchange import GradientExchange
from slipstream.gradients.policy import Policy
from slipstream.gradients.reductions import check_sums
from slipstream.gradients.wires import check_unscaled

__all__ = ["Exchange", "Terms", "exchange_of", "groups_of", "is_alone", "names_of", "reduce_gradients"]

Groups = tuple[tuple[int, ...], ...]
Kinds = tuple[tuple[tuple[int, ...], Any], ...]  # shape and NumPy dtype of each gradient
_BUCKETS = 16  # of a list, or more


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

    def __init__(self, kinds: Kinds, names: Sequence[str]) -> None:
        self._shapes = [shape for shape, _ in kinds]
        self._codes = [code_of_dtype(dtype) for _, dtype in kinds]
        self._names = names
        self._views: dict[int, Array] = {}
        self._ready: Callable[..., None] = _nobody
        self.given: list[Array | None] = [None] * len(kinds)
        self.results: list[Any] = [None] * len(kinds)

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

    def give(self, index: int, array: Array, lasts: bool) -> None:
        """Takes a gradient of the step. ``lasts``: the array stays as it is until the step has ended."""
        self.given[index] = array
        self._ready(index)
        if not lasts and index not in self._views:  # nobody has copied it yet
            self.given[index] = np.array(array)

    def take(self) -> list[Array]:
        """The reduced ones, which this forgets."""
        found, self.results = self.results, [None] * len(self.results)
        self.drop()
        return found


def _nobody(*_: object) -> None:
    return None


class Exchange:
    """The exchange of lists of one kind."""

    def __init__(self, kinds: Kinds, names: Sequence[str], terms: Terms) -> None:
        process_set = terms.process_set
        scales = (1.0 / terms.predivide, terms.predivide) if terms.op == Average else (1.0, 1.0)
        self._lock = threading.Lock()
        self._amid = False  # a step has begun, and has not ended
        self._process_set = process_set
        self._arrays = _Arrays(kinds, names)
        self._exchange = GradientExchange(
            self._arrays,
            len(kinds),
            group=lambda: process_set.group,
            op=engine_op(terms.op),
            prescale=scales[0],
            postscale=scales[1],
            passes=1,
            groups=terms.groups,
            most=_most(kinds),
            policy=Policy(terms.way),
        )

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """A whole step."""
        with self._lock, adding_words():
            self._check_ended()
            # The last gradients of a model come first in backward, so these do here.
            for index in reversed(range(len(arrays))):
                self._arrays.give(index, arrays[index], lasts=True)
            return self._reduced()

    def begin(self) -> None:
        """A step begins whose gradients come in parts."""
        with self._lock:
            self._check_ended()
            self._amid = True

    def give(self, numbers: Sequence[int], arrays: Sequence[Array]) -> None:
        """Gradients of the step that has begun, by number, which may travel at once. The arrays may change then."""
        with self._lock, adding_words():
            for index, array in zip(numbers, arrays, strict=True):
                self._arrays.give(index, array, lasts=False)

    def end(self) -> list[Array]:
        """Ends the step that has begun, of which all gradients have come; returns the reduced ones."""
        with self._lock, adding_words():
            self._amid = False
            return self._reduced()

    def _reduced(self) -> list[Array]:
        try:
            self._exchange.synchronize()
            return self._arrays.take()
        finally:
            self._arrays.drop()

    def _check_ended(self) -> None:
        """The other ranks wait for what is missing of a step that has not ended, and would take this one's for it."""
        if self._amid:
            group: Group = self._process_set.group
            group.session.abort(
                f"rank {group.native.ranks[group.rank]} began a step while another one with the same gradients had "
                "not ended: that one has failed, or runs in another thread. Some of its gradients have been sent, and "
                "the other ranks wait for the rest. End the program when a step fails, and run one step at a time"
            )
            group.session.check()


def _most(kinds: Kinds) -> int:
    """Bytes of a bucket: many buckets, so that some travel while gradients of the next ones are computed."""
    total = sum(math.prod(shape) * int(dtype.itemsize) for shape, dtype in kinds)
    return min(max(total // _BUCKETS, FIRST_BUCKET_BYTES), BUCKET_BYTES)


_exchanges: weakref.WeakKeyDictionary[Group, dict[Any, Exchange]] = weakref.WeakKeyDictionary()


def exchange_of(kinds: Kinds, names: Sequence[str], terms: Terms) -> Exchange:
    """That of lists of these shapes and dtypes; every rank of the process set asks for it, and ``op`` is not Adasum.

    ``names``: for errors and the timeline, all "" if some are not known.
    """
    key = kinds, tuple(names), terms.op, terms.predivide, terms.way, terms.groups
    known = _exchanges.setdefault(terms.process_set.group, {})
    found = known.get(key)
    if found is None:
        found = known[key] = Exchange(kinds, names, terms)
    return found


def reduce_gradients(arrays: Sequence[Array], names: Sequence[str], terms: Terms) -> list[Array]:
    """Reduces a list of gradients over the process set; every rank of it calls this. Returns new arrays.

    ``names``: as for `exchange_of`. Raises Mismatch where ranks bring lists that differ, another SlipstreamError when
    the job has failed.
    """
    if not arrays:
        return []
    if terms.op == Adasum:
        given = starting.grouped_all_reduce(arrays, None, Adasum, 1.0, 1.0, terms.process_set)
        return given.wait()  # type: ignore[no-any-return]
    return exchange_of(tuple((one.shape, one.dtype) for one in arrays), names, terms)(arrays)
