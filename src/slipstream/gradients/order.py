"""The order in which gradients come: how all ranks agree on one, what it is worth, and when to agree anew.

A gradient's place is its number in the order in which backward has made the gradients of a step, from 0; a gradient
that has not come has the number of all parameters. All ranks agree on the highest place that any of them has seen:
a bucket travels once the last rank has filled it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.gradients.buckets import Parameter

__all__ = ["Cut", "Places", "Watch", "exposed", "gains", "in_order", "missing", "places_of"]

Places = NDArray[np.int64]  # by the number of the parameter
Cut = Sequence[Sequence[Parameter]]  # the parameters of each bucket

# What another order must hide of the exchange, as a part of all of it.
LEAST_GAIN = 0.1
# Steps on end that must show it, ...
STEPS_TO_SHOW = 10
# ... and steps before ranks agree again; twice as many each time, where the order did not last.
STEPS_TO_KEEP = 100


def places_of(arrived: Sequence[int], count: int) -> Places:
    """The place of each of ``count`` gradients in a step in which these came; all 0 if none has, which says nothing."""
    found = np.full(count, count if arrived else 0, dtype=np.int64)
    found[list(arrived)] = np.arange(len(arrived))
    return found


def missing(places: Places) -> frozenset[int]:
    """The parameters without a gradient on some rank."""
    return frozenset(np.flatnonzero(places == len(places)).tolist())


def in_order(parameters: Sequence[Parameter], places: Places) -> list[Parameter]:
    """The parameters in the order of their places; those of the same place stay as they are."""
    at = places.tolist()
    return sorted(parameters, key=lambda parameter: at[parameter.index])


def exposed(buckets: Cut, places: Places) -> float:
    """The part of an exchange, from 0 to 1, that is left when backward is over, if gradients come at these places.

    As if backward took the same time for each gradient, and as long for all as the exchange: then most is to be
    hidden. Buckets travel one after another, each when it and all before it are full.
    """
    at = places.tolist()
    end = 1 + max((place for place in at if place < len(at)), default=0)
    sizes = [sum(parameter.nbytes for parameter in bucket) for bucket in buckets]
    whole, full, busy = max(sum(sizes), 1), 0, 0.0
    for bucket, size in zip(buckets, sizes, strict=True):
        full = max(full, min(max(at[parameter.index] for parameter in bucket) + 1, end))
        busy = max(busy, full / end) + size / whole
    return max(busy - 1, 0.0)


def gains(now: Cut, then: Cut, places: Places) -> bool:
    """Whether ``then`` hides enough more of the exchange to be worth a change."""
    return exposed(now, places) - exposed(then, places) > LEAST_GAIN


class Watch:
    """Looks at the steps of this rank, and wishes for other buckets when gradients come in another order for long.

    What it compares are the buckets that there are with those that fitted the first of these steps: if orders change
    from step to step, no buckets fit, and there is nothing to wish for. ``count``: how many parameters there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._arrived: list[int] = []
        self._better: Cut | None = None
        self._shown = 0
        self._since = self._keep = 0

    @property
    def places(self) -> Places:
        """Where gradients came in this rank's last step that had any."""
        return places_of(self._arrived, self._count)

    def wishes(self, arrived: Sequence[int], now: Callable[[], Cut], cut: Callable[[Places], Cut]) -> bool:
        """Whether the ranks should agree anew after a step in which gradients have ``arrived`` in this order.

        ``now``: the buckets that there are; ``cut``: those for other places.
        """
        self._since += 1
        if arrived:
            if arrived != self._arrived:
                self._arrived = list(arrived)
                self._judge(now(), cut)
            self._shown += self._better is not None
        return self._shown >= STEPS_TO_SHOW and self._since > self._keep

    def _judge(self, now: Cut, cut: Callable[[Places], Cut]) -> None:
        places = self.places
        if self._better is not None and gains(now, self._better, places):
            return
        self._shown, self._better = 0, None
        if exposed(now, places) > LEAST_GAIN:
            fitting = cut(places)
            if gains(now, fitting, places):
                self._better = fitting

    def agreed(self) -> None:
        """The ranks have agreed: on other buckets, or to keep those that there are."""
        lasted = self._since > 2 * self._keep
        self._keep = STEPS_TO_KEEP if lasted else 2 * self._keep
        self._since = self._shown = 0
        self._arrived, self._better = [], None
