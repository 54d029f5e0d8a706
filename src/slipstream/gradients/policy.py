"""Which way each gradient takes: small and sensitive ones travel as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.gradients.buckets import Parameter
from slipstream.gradients.compression import EXACT, Cast, Way

__all__ = ["LEAST_NUMBERS", "Policy", "is_sensitive"]

LEAST_NUMBERS = 4096  # of a gradient; smaller ones are few of the bytes


def is_sensitive(parameter: Parameter) -> bool:
    """Whether a parameter is a bias, the weight of a norm, or small: it has one dimension, or few numbers."""
    return len(parameter.shape) <= 1 or parameter.count < LEAST_NUMBERS


@dataclass(frozen=True)
class Policy:
    """``way``: that of all gradients. ``exact``: which travel as they are nevertheless.

    A `Cast` leaves none out, as Horovod's compressions do.
    """

    way: Way = EXACT
    exact: Callable[[Parameter], bool] = is_sensitive

    def way_of(self, parameter: Parameter) -> Way:
        """The way of a gradient whose dtype is still its own. The same on all ranks."""
        if isinstance(self.way, Cast):
            return self.way
        taken = self.way.takes(parameter.dtype, parameter.shape) and not self.exact(parameter)
        return self.way if taken else EXACT
