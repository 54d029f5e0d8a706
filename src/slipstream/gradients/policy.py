"""Which way each gradient takes: small and sensitive ones travel as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slipstream.base.dtypes import DType, Op
from slipstream.comm.collectives.wires import tell_of_no_effect
from slipstream.comm.membership.group import Group
from slipstream.gradients.buckets import Parameter
from slipstream.gradients.compression import BF16, EXACT, FP16, Cast, Way, Wire

__all__ = ["LEAST_NUMBERS", "Policy", "as_it_acts", "is_sensitive"]

LEAST_NUMBERS = 4096  # of a gradient; smaller ones are few of the bytes
_SUMS = (Op.SUM, Op.AVG)
_WIRE_OF = {FP16: Wire("f16"), BF16: Wire("bf16")}


def is_sensitive(parameter: Parameter) -> bool:
    """Whether a parameter is a bias, the weight of a norm, or small: it has one dimension, or few numbers."""
    return len(parameter.shape) <= 1 or parameter.count < LEAST_NUMBERS


@dataclass(frozen=True)
class Policy:
    """``way``: that of all gradients, None for what the job's setting says (SLIPSTREAM_WIRE).

    ``exact``: which gradients travel as they are nevertheless. ``own``: ways of single parameters, by number. A `Cast`
    leaves none out, as Horovod's compressions do; but where gradients are float32 and are added up, the engine's wire
    of the same type takes its place, which rounds only between hosts.
    """

    way: Way | None = None
    exact: Callable[[Parameter], bool] = is_sensitive
    own: Mapping[int, Way] = field(default_factory=dict)

    def of_all(self, group: Group) -> Way:
        """The way of all gradients for which nothing else is said."""
        if self.way is not None:
            return self.way
        setting = group.job.settings.wire
        return EXACT if setting == "exact" else Wire(setting)

    def asked_of(self, parameter: Parameter, group: Group, op: int) -> Way:
        """The way that is asked for, also if all ranks share a host; ``op`` is the engine's. The same on all ranks.

        The dtype of the gradient is still its own.
        """
        way = self.own.get(parameter.index, self.way)
        if way is None:
            way = EXACT if parameter.dtype is not DType.F32 else self.of_all(group)
        if isinstance(way, Cast):
            wire = _WIRE_OF.get(way)
            if wire is None or parameter.dtype is not DType.F32 or op not in _SUMS:
                return way
            way = wire
        if not way.takes(parameter.dtype, parameter.shape) or self.exact(parameter):
            return EXACT
        return EXACT if isinstance(way, Wire) and op not in _SUMS else way

    def tell_of_no_effect(self, group: Group) -> None:
        """Warns of wires that the program asks for where they change nothing."""
        for way in {self.way, *self.own.values()}:
            if isinstance(way, Wire):
                tell_of_no_effect(group, way.name)

    def way_of(self, parameter: Parameter, group: Group, op: int) -> Way:
        """The way that a gradient takes, as it acts in this group."""
        return as_it_acts(self.asked_of(parameter, group, op), group)


def as_it_acts(way: Way, group: Group) -> Way:
    """What a way is among these ranks: a wire acts between hosts alone."""
    return EXACT if isinstance(way, Wire) and not group.spans_hosts else way
