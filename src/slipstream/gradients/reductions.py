"""How the gradients of a bucket are reduced, each way with a class of its own.

A reduction runs in three parts, so that buckets travel beside each other: all are started in their order, then all go
on in that order, then all are finished. What it starts in the second part goes over a channel of its own (`second`):
there, too, all ranks have one order, whatever thread starts the first parts.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.base.dtypes import DType, Op
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.work import DONE, Work
from slipstream.comm.membership.group import Group
from slipstream.gradients.buckets import Bucket
from slipstream.gradients.states import Array, States

__all__ = ["Exact", "Reduction", "Terms", "check_sums", "residuals", "second", "start_sum", "without_effect"]

_SUMS = (Op.SUM, Op.AVG)


@dataclass(frozen=True)
class Terms:
    """What is asked of a reduction: the engine's ``op``, and factors before and after it.

    ``timeout``: seconds that each of its operations may take, 0 for the job's limit.
    """

    op: int
    prescale: float = 1.0
    postscale: float = 1.0
    timeout: float = 0.0

    def factor(self, size: int) -> float:
        """By what a sum over ``size`` ranks is multiplied."""
        return self.prescale * self.postscale / (size if self.op == Op.AVG else 1)


class Reduction(Protocol):
    """One bucket's, again and again: gradients are in its memory before, what all ranks made of them afterwards."""

    def start(self, group: Group, urgency: int = 0) -> None:
        """Takes the gradients, and begins; ``urgency`` as in `addresses.all_reduce`."""

    def go_on(self) -> None:
        """What comes after the first messages; may wait for them."""

    def finish(self) -> None:
        """Waits for the end; the results are in the memory then."""

    def wait(self) -> None:
        """Waits for what is under way, whose result nobody wants."""


class Exact:
    """Gradients as they are, or as they have been cast; by a ``wire`` of the engine between hosts, if there is one."""

    def __init__(self, bucket: Bucket, terms: Terms, wire: str | None = None) -> None:
        self._bucket = bucket
        self._terms = terms
        self._wire = wire
        self._work = DONE
        self._title = f"the exchange of {bucket.name or 'gradients'}"

    def start(self, group: Group, urgency: int = 0) -> None:
        """Begins to reduce the memory."""
        bucket = self._bucket
        self._work = addresses.all_reduce(
            group,
            bucket.address,
            bucket.address,
            bucket.count,
            int(bucket.dtype),
            self._terms.op,
            prescale=self._terms.prescale,
            postscale=self._terms.postscale,
            wire=self._wire,
            keep=bucket.memory,
            name=bucket.name,
            timeout=self._terms.timeout,
            urgency=urgency,
        )
        self._work.entitle(self._title)

    def go_on(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Waits for the end."""
        self._work.wait()
        self._work = DONE

    wait = finish


def start_sum(group: Group, message: Array, name: str, terms: Terms) -> Work:
    """Starts the exact all-reduce of a message, in place."""
    address = message.ctypes.data
    return addresses.all_reduce(
        group,
        address,
        address,
        message.size,
        int(DType.F32),
        terms.op,
        prescale=terms.prescale,
        postscale=terms.postscale,
        keep=message,
        name=name,
        timeout=terms.timeout,
    )


def check_sums(what: object, op: int) -> None:
    """ValueError unless the engine's ``op`` adds up, which is what ``what`` can do."""
    if op not in _SUMS:
        raise ValueError(f"{what} compresses sums and averages of gradients, not op={Op(op).name.lower()}")


def without_effect(dtype: DType, op: int) -> NDArray[np.uint8]:
    """The bytes of a number that changes nothing in a reduction by the engine's ``op``."""
    return np.frombuffer(_core.neutral(dtype, op), np.uint8)


def residuals(bucket: Bucket, states: States) -> list[Array]:
    """What is owed of each gradient of the bucket, flat. They lie together."""
    memory = np.zeros(sum(place.parameter.count for place in bucket.places), dtype=np.float32)
    found, begin = [], 0
    for place in bucket.places:
        parameter = place.parameter
        found.append(memory[begin : begin + parameter.count])
        states.keep_residual(parameter, found[-1])
        begin += parameter.count
    return found


_seconds: weakref.WeakKeyDictionary[Group, Group] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def second(group: Group) -> Group:
    """The group of the same ranks for what reductions start in their second part."""
    with _lock:
        found = _seconds.get(group)
        if found is None:
            found = _seconds[group] = group.beside("the second parts of reductions")
        return found


def _forget_after_fork() -> None:
    global _lock, _seconds
    _lock = threading.Lock()
    _seconds = weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_forget_after_fork)
