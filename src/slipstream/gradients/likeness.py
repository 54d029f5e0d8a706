"""What all ranks must have alike of an exchange: the parameters, how their gradients travel, and the buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slipstream.base.dtypes import name_of
from slipstream.comm.membership.group import Group
from slipstream.gradients.agreement import check_agreement, check_arguments, check_compressions, check_values
from slipstream.gradients.buckets import OVERLAPPED_BYTES, Parameter, cut
from slipstream.gradients.compression import as_data
from slipstream.gradients.order import Cut, Places, in_order, missing
from slipstream.gradients.policy import Policy, as_it_acts
from slipstream.gradients.reductions import Terms

if TYPE_CHECKING:
    from slipstream.gradients.exchange import Gradients

__all__ = ["Likeness"]


@dataclass(frozen=True)
class Likeness:
    """That of an exchange: see the arguments of `slipstream.gradients.exchange.GradientExchange`."""

    gradients: Gradients
    count: int
    program: Callable[[], Group]
    terms: Terms
    groups: Sequence[Sequence[int]]
    policy: Policy
    overlaps: bool
    most: int | None

    def parameters(self) -> list[Parameter]:
        """All parameters, as they are without a way of their own."""
        return [self.gradients.parameter(index) for index in range(self.count)]

    def travelling(self, asked: Parameter) -> Parameter:
        """A parameter with the way that its gradient takes, from the one that is asked for."""
        way = as_it_acts(asked.way, self.program())
        return replace(asked, dtype=way.dtype(asked.dtype), way=way)

    def asked(self) -> list[Parameter]:
        """All parameters with the ways that are asked for."""
        group, op = self.program(), self.terms.op
        return [replace(one, way=self.policy.asked_of(one, group, op)) for one in self.parameters()]

    def cut(self, parameters: Sequence[Parameter], places: Places) -> Cut:
        """Into buckets, for gradients that come at these places."""
        most = OVERLAPPED_BYTES if self.overlaps else self.most
        return cut(in_order(parameters, places), self.groups, most, missing(places))

    def compare(self, passes: int, group: Group) -> list[Parameter]:
        """Compares all of it over ``group``, and ``passes``; every rank calls it. Returns parameters as they travel.

        Raises Mismatch on all ranks alike if they differ.
        """
        described, asked = self.gradients.describe(), self.asked()
        check_agreement("optimise", described, group)
        check_values(self.gradients.marks(), described, all(one.name for one in asked), group)
        ways = [f"{one.way} ({name_of(one.dtype)})" for one in asked]
        check_compressions(str(self.policy.of_all(group)), ways, described, group)
        self.policy.tell_of_no_effect(group)
        check_arguments(self.overlaps, passes, group)
        return [self.travelling(one) for one in asked]

    def told(self) -> dict[str, Any]:
        """All of it as JSON can carry it."""
        return {
            "parameters": list(self.gradients.describe()),
            "op": self.terms.op,
            "prescale": self.terms.prescale,
            "postscale": self.terms.postscale,
            "groups": [list(members) for members in self.groups],
            "overlaps": self.overlaps,
            "most": self.most,
            "compression": as_data(self.policy.of_all(self.program())),
            "travel": [[p.name, list(p.shape), p.count, int(p.dtype), as_data(p.way)] for p in self.asked()],
        }
