"""The group on which the gradients of one optimizer travel.

Ranks match what they start on a group by its order. Buckets are launched in backward, or at the end of the step if a
rank has no gradient for one: where two optimizers share a backward pass, their buckets come in an order that differs
between ranks, and between a bucket and what the program calls by itself. So each exchange has a group of its own. One
exchange may use the program's group nevertheless, if reducers serve that: they serve no other.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

import numpy as np

from slipstream.base.dtypes import Op
from slipstream.comm.collectives import arrays
from slipstream.comm.membership.group import Group

__all__ = ["Line"]


class Line:
    """``group``: gives the program's group, and is asked anew each time; ``number``: of the exchange, among its group's."""

    def __init__(self, group: Callable[[], Group], number: int) -> None:
        self._group = group
        self._purpose = f"the gradients of optimizer {number} since {group().id}"
        self._shares = 0  # the id of the program's group, if buckets travel on it
        self._owns: weakref.WeakKeyDictionary[Group, Group] = weakref.WeakKeyDictionary()  # one a job

    def own(self) -> Group:
        """A group of the same ranks for this exchange alone."""
        group = self._group()
        found = self._owns.get(group)
        if found is None:
            found = self._owns[group] = group.beside(self._purpose)
        return found

    def of_buckets(self) -> Group:
        """The group on which buckets travel."""
        group = self._group()
        return group if self._shares == group.id else self.own()

    def agree(self) -> None:
        """All ranks agree whether buckets travel on the program's group. Every rank calls it, before the first bucket."""
        group = self._group()
        if group.job.reducers.for_choices(group) is None:
            return
        taken = any(one is not self and one._shares == group.id for one in _sharing)
        if not arrays.all_reduce(np.array([taken], np.int64), Op.MAX, group=self.own())[0]:
            self._shares = group.id
            _sharing.add(self)

    def end(self) -> None:
        """No bucket travels any more."""
        self._shares = 0
        _sharing.discard(self)


_sharing: weakref.WeakSet[Line] = weakref.WeakSet()


def _forget_after_fork() -> None:
    global _sharing
    _sharing = weakref.WeakSet()


os.register_at_fork(after_in_child=_forget_after_fork)
