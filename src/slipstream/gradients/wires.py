"""Wires with error feedback: a rank sends gradients that are rounded already, and keeps what rounding took."""

from __future__ import annotations

import numpy as np

from slipstream import _core
from slipstream.base.dtypes import as_wire
from slipstream.comm.membership.group import Group
from slipstream.gradients.buckets import Bucket
from slipstream.gradients.compression import Way, Wire
from slipstream.gradients.reductions import Exact, Terms, residuals
from slipstream.gradients.states import States

__all__ = ["RoundedReduction", "check_unscaled"]


def check_unscaled(way: Way, prescale: float) -> None:
    """ValueError if ``way`` has error feedback and the engine would round gradients times ``prescale``, not gradients.

    It would take other remainders from these than those that the feedback makes up for.
    """
    if isinstance(way, Wire) and way.feedback and prescale != 1.0:
        raise ValueError(f"{way} does not go with a factor before the sum, such as gradient_predivide_factor")


class RoundedReduction(Exact):
    """The engine rounds what has been rounded to the same numbers, where its blocks begin at the same places.

    What it rounds on the way, the sums of several ranks, is not made up for.
    """

    def __init__(self, way: Wire, bucket: Bucket, terms: Terms, states: States) -> None:
        super().__init__(bucket, terms, way.name)
        self._code = int(as_wire(way.name))
        self._gradients = [view for _, view in bucket.gradients()]
        self._residuals = residuals(bucket, states)

    @np.errstate(all="ignore")  # what is not finite spoils the step, on all ranks
    def start(self, group: Group, urgency: int = 0) -> None:
        """Rounds, keeps the rest, and begins to reduce the memory."""
        numbers = self._bucket.floats()
        for view, owed in zip(self._gradients, self._residuals, strict=True):
            owed += view
            view[...] = owed
        _core.round_to(self._code, numbers.ctypes.data, numbers.size)
        for view, owed in zip(self._gradients, self._residuals, strict=True):
            owed -= view
            if not np.isfinite(owed).all():
                owed[...] = 0
        super().start(group, urgency)
