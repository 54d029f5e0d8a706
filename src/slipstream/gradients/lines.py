"""The group on which the gradients of one optimizer travel.

Ranks match what they start on a group by its order. Buckets are launched in backward, or at the end of the step if a
rank has no gradient for one: where two optimizers share a backward pass, their buckets come in an order that differs
between ranks, and so do a bucket and what the program calls by itself. So each exchange has a group of its own.
Reducers serve one group of a job: that of the first exchange, from its first buckets on, in place of the program's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from slipstream.base.dtypes import Op
from slipstream.comm.collectives import arrays
from slipstream.comm.membership.group import Group

__all__ = ["Line"]


class Line:
    """``program``: gives the program's group, and is asked anew each time.

    ``purpose`` is what all ranks name the group after: "" before the exchange has a number there.
    """

    def __init__(self, program: Callable[[], Group]) -> None:
        self._program = program
        self.purpose = ""
        self._groups: weakref.WeakKeyDictionary[Group, Group] = weakref.WeakKeyDictionary()  # one a job
        self._ended = False

    def numbered(self, number: int) -> None:
        """The exchange has this number among those of the program's group."""
        self.purpose = self.purpose or f"the gradients of optimizer {number} since {self._program().id}"

    def group(self) -> Group:
        """A group of the program's ranks for this exchange alone."""
        program = self._program()
        found = self._groups.get(program)
        if found is None:
            found = self._groups[program] = program.beside(self.purpose)
        return found

    def take_reducers(self) -> None:
        """Has reducers serve this exchange unless they serve another one. Every rank calls it, before any bucket."""
        program, group = self._program(), self.group()
        if program.job.reducers.for_choices(program) is None:
            if program not in _taken:  # there are none, or they serve what is not the program's
                return
            before = _taken[program]()
            others = np.array([before is not None and not before._ended], np.int64)
            if arrays.all_reduce(others, Op.MAX, group=group)[0]:
                return
        program.give_reducers(group)
        _taken[program] = weakref.ref(self)

    def end(self) -> None:
        """Nothing travels any more: another exchange may have the reducers."""
        self._ended = True

    def begin_again(self) -> None:
        """The opposite."""
        self._ended = False


# Of the program's groups whose reducers serve an exchange instead: that of this.
_taken: weakref.WeakKeyDictionary[Group, weakref.ref[Line]] = weakref.WeakKeyDictionary()
