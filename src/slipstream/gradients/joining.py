"""Ranks that have no more batches take part in the others' steps, with zeros, until these have none either."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial

from slipstream.base.errors import Mismatch
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.negotiated import Pending
from slipstream.comm.negotiation.negotiator import negotiator_of
from slipstream.gradients.stand_ins import stand_in_of
from slipstream.gradients.turns import turns_of

__all__ = ["JoinsBeside", "join"]

JoinsBeside = Callable[[], AbstractContextManager[Callable[[], bool]]]
"""Within it a rank takes part in other operations of other ranks; gives what tells whether it has done so."""


def join(
    group: Group,
    take_part: Callable[[Request, Group], Pending] | None = None,
    beside: Sequence[JoinsBeside] = (),
) -> int:
    """Takes part in the steps of the group's other ranks until all of them have called this.

    With ``take_part`` also in the operations that they negotiate, and as ``beside`` says in yet others. Returns the
    number in the job of the rank that called it last. An exception of a signal's handler ends the session: the others
    count on this rank.
    """
    turns, since = turns_of(group), time.monotonic()
    with Together(group, "join"), ExitStack() as entered:
        helps = [entered.enter_context(begin()) for begin in beside]
        negotiator = None if take_part is None else negotiator_of(group)
        before = 0 if negotiator is None else negotiator.helped
        named = None if negotiator is None or take_part is None else negotiator.join(take_part)
        helped = False
        while (turn := turns.next(partial(stand_in_of, group))) is not None:
            exchange, wish = turn
            with suppress(Mismatch):  # which the ranks that step raise, too, and may go on
                exchange.take_part(wish)
            helped = True
        if named is not None and negotiator is not None:
            named.wait()
            helped = helped or negotiator.helped > before
        helped = helped or any(one() for one in helps)
        return turns.last(helped, time.monotonic() - since)
