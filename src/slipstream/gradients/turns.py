"""Ranks that have no more batches take part in the others' steps, with zeros, until these have none either.

Before an exchange completes, the ranks of its group tell each other whose turn it is. A rank without batches learns
from that which exchange it has to take part in. With its turn each rank tells whether it wishes that all ranks agree on
something after the next turn: that is one bit, and no further message.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import DType, Op
from slipstream.base.errors import Aborted
from slipstream.base.own_names import own_name
from slipstream.comm.collectives import addresses, arrays
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.messages import ENDLESS
from slipstream.comm.negotiation.negotiated import Pending
from slipstream.comm.negotiation.negotiator import negotiator_of

__all__ = ["JoinsBeside", "TakesPart", "Turn", "join", "turns_of"]

_I64, _MAX = int(DType.I64), int(Op.MAX)
_WISH = 1 << 32  # above the numbers of exchanges, so that the highest of all ranks has it if any has
_NAME = own_name("the turn of an optimizer, or join")
_STEP = "the step of an optimizer"
_JOINED = (
    "join (it takes part in the steps of optimizers and in the operations that the others call, but not in those of "
    "smaller process sets, of slipstream itself, or of torch.distributed)"
)


JoinsBeside = Callable[[], AbstractContextManager[Callable[[], bool]]]
"""Within it a rank takes part in other operations of other ranks; gives what tells whether it has done so."""


class TakesPart(Protocol):
    """An exchange that the ranks of a group run together."""

    def take_part(self, wish: bool) -> None:
        """Runs it once without gradients of this rank; ``wish``: whether any rank has told one."""


class Turn(NamedTuple):
    """The turn of an exchange, which this rank tells the others."""

    number: NDArray[np.int64]
    work: Work

    def wait(self) -> bool:
        """Waits until all ranks have told it; returns whether any of them has told a wish."""
        self.work.wait()
        return bool(self.number[0] & _WISH)


class _Turns:
    """The exchanges of one group, in the order in which they were made: the same on all ranks."""

    def __init__(self, group: Group) -> None:
        self._group = group.beside("the turns of optimizers")
        self._exchanges: list[weakref.ref[TakesPart]] = []

    def add(self, exchange: TakesPart) -> int:
        """Takes note of a new one; returns its number, from 1."""
        self._exchanges.append(weakref.ref(exchange))
        return len(self._exchanges)

    def begin(self, exchange: TakesPart, wish: bool = False) -> Turn:
        """Tells the others that it is this one's turn, and a ``wish``; the turn is to be waited for."""
        if not any(one() is exchange for one in self._exchanges):  # made in a job before this one
            self.add(exchange)
        number = next(i for i, one in enumerate(self._exchanges, 1) if one() is exchange)
        return self._tell(np.array([number + _WISH * wish], np.int64), _STEP)

    def next(self) -> tuple[TakesPart, bool] | None:
        """Whose turn it is, and whether any rank has told a wish; None if no rank has batches any more."""
        turn = self._tell(np.zeros(1, np.int64), _JOINED, ENDLESS)  # the others may go on without steps
        wish, number = turn.wait(), int(turn.number[0]) % _WISH
        if number == 0:
            return None
        exchange = self._exchanges[number - 1]() if number <= len(self._exchanges) else None
        if exchange is None:
            rank = self._group.native.ranks[self._group.rank]
            made = number <= len(self._exchanges)
            text = f"rank {rank} has joined, and " + (
                f"does not have optimizer {number} any more, which other ranks step: keep optimizers until join has "
                "returned"
                if made
                else f"has not stepped optimizer {number} (or its gradient tape) before, which other ranks step: give "
                "each rank at least one batch before it joins"
            )
            self._group.session.abort(text)
            raise Aborted(text)
        return exchange, wish

    def _tell(self, number: NDArray[np.int64], title: str, timeout: float = 0.0) -> Turn:
        """``number`` becomes the highest of all ranks. ``title``: what reports call it while it waits for them."""
        address = number.ctypes.data
        work = addresses.all_reduce(
            self._group, address, address, 1, _I64, _MAX, name=_NAME, keep=number, timeout=timeout
        )
        work.entitle(title)
        return Turn(number, work)

    def last(self, helped: bool, waited: float) -> int:
        """The rank (its number in the job) that has joined last: it ``helped`` nobody, and ``waited`` least (seconds).

        Ranks that have called operations for each other, and have joined before these began, have all helped.
        """
        everyone = np.asarray(arrays.all_gather(np.array([[helped, waited]], np.float64), group=self._group))
        return self._group.ranks[int(np.lexsort(everyone.T[::-1])[0])]


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
        while (turn := turns.next()) is not None:
            exchange, wish = turn
            exchange.take_part(wish)
            helped = True
        if named is not None and negotiator is not None:
            named.wait()
            helped = helped or negotiator.helped > before
        helped = helped or any(one() for one in helps)
        return turns.last(helped, time.monotonic() - since)


_turns: weakref.WeakKeyDictionary[Group, _Turns] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def turns_of(group: Group) -> _Turns:
    """Those of a group; made at the first call."""
    with _lock:
        found = _turns.get(group)
        if found is None:
            found = _turns.setdefault(group, _Turns(group))
        return found


def _forget_after_fork() -> None:
    global _lock, _turns
    _lock = threading.RLock()
    _turns = weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_forget_after_fork)
