"""Whose turn it is: before an exchange completes, the ranks of its group tell each other which one they step.

A rank without batches learns from that which exchange it has to take part in. In the first turn of an exchange the
ranks that step it tell those that have joined what it is like. With its turn each rank tells whether it wishes that all
ranks agree on something after the next turn: that takes no further message.

It also tells how many steps of this rank have failed before they came to their turn, as far as that is known
(`given_up`). If the ranks have different numbers, they are at different steps, and the job ends.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import DType, Op
from slipstream.base.errors import Aborted
from slipstream.base.own_names import own_name
from slipstream.comm.collectives import addresses, arrays
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.messages import ENDLESS
from slipstream.gradients.numbers import Numbers, TakesPart, Told

__all__ = ["Turn", "turns_of"]

_I64, _MAX = int(DType.I64), int(Op.MAX)
_NAME = own_name("the turn of an optimizer, or join")
_LIKE = own_name("what an optimizer is like, for ranks that have joined")
_STEP = "the step of an optimizer"
_JOINED = (
    "join (it takes part in the steps of optimizers and in the operations that the others call, but not in those of "
    "smaller process sets, of slipstream itself, or of torch.distributed)"
)


_MOST_FAILED = 1 << 40
_RANK_BITS = 20


class _Facts(NamedTuple):
    """What the ranks tell with a turn; of each the highest of all ranks counts.

    ``number``: of the exchange, 0 where the rank is ``unsure`` of it, or has ``joined``. ``failed``: how many of its
    steps, times 2^20, and the rank. ``fewest``: the same number, negative; of all ranks then that with the fewest.
    """

    number: int
    unsure: int
    wish: int
    joined: int
    failed: int = 0
    fewest: int = -_MOST_FAILED  # of a rank that has joined


class Turn:
    """The turn of an exchange, which this rank tells the others."""

    def __init__(self, memory: NDArray[np.int64], work: Work, check: Callable[[_Facts], None]) -> None:
        self._memory, self._work, self._check = memory, work, check

    def heard(self) -> _Facts:
        """Waits until all ranks have told theirs; returns what all of them have. Raises if they are at other steps."""
        self._work.wait()
        facts = _Facts(*self._memory.tolist())
        self._check(facts)
        return facts

    def wait(self) -> bool:
        """Waits as `heard` does; returns whether any rank has told a wish."""
        return bool(self.heard().wish)


class _Turns:
    """The exchanges of one group."""

    def __init__(self, group: Group) -> None:
        self._group = group.beside("the turns of optimizers")
        self._numbers = Numbers()
        self._checks = False  # a rank has lacked an exchange: ranks may number others differently
        self._failed = 0  # steps of this rank, since ranks have joined
        self._compared = 0  # of them, those that this rank has compared with the others'
        self.begun = 0
        """How many turns this rank has begun."""

    def add(self, exchange: TakesPart) -> None:
        """Takes note of a new one; all ranks make them in one order."""
        self._numbers.add(exchange)

    def begin(self, exchange: TakesPart, wish: bool = False) -> Turn:
        """Tells the others that it is this one's turn, and a ``wish``; the turn is to be waited for."""
        numbers = self._numbers
        if not numbers.knows(exchange):  # made in a job before this one
            numbers.add(exchange)
        number = numbers.of(exchange)
        self.begun += 1
        failed = self._failed << _RANK_BITS | self._group.rank
        turn = self._tell(_Facts(number, not number, wish, False, failed, -self._failed), _STEP)
        if self._checks or numbers.is_new(number):
            self._check(exchange, turn.heard())
        elif self._failed != self._compared:  # before an exchange begins that the others may not be in
            turn.heard()
        self._compared = self._failed
        return turn

    def given_up(self, begun: int, turns: int | None) -> None:
        """A step of this rank has failed that began when so many turns had begun, and might have come to another one.

        ``turns``: how many a step has that does not fail; None: that is not known.
        """
        if turns is None or self.begun - begun < turns:
            self._failed += 1

    def _check_steps(self, heard: _Facts) -> None:
        most, fewest = heard.failed >> _RANK_BITS, -heard.fewest
        if fewest not in (most, _MOST_FAILED):
            rank = self._group.native.ranks[heard.failed & ((1 << _RANK_BITS) - 1)]
            self._abort(
                f"a step of rank {rank} has failed before it came to its gradients, and not on all other ranks: the "
                "ranks are at different steps of the program. End the program on all ranks after an error that some "
                "of them have alone"
            )

    def _check(self, exchange: TakesPart, heard: _Facts) -> None:
        """The ranks step the same one; all that have joined know it afterwards."""
        number = heard.number or self._agree(exchange)
        problem = self._numbers.settle(exchange, number)
        if problem:
            self._abort(
                f"rank {self._rank} {problem}: give all ranks the same parameters and options, and have them step "
                "their optimizers in one order"
            )
        new = self._numbers.is_new(number)
        self._numbers.has_a_turn(number)
        if new and heard.joined:
            self._share(exchange.told())

    def _agree(self, exchange: TakesPart | None) -> int:
        """A number, where no rank that steps knows one; every rank calls it. ``exchange``: None where it has joined."""
        told = self._share(None if exchange is None else exchange.told(), exchange is None)
        mine = np.array(self._numbers.alike(told["same"]), np.int64)
        alike = arrays.all_gather(mine, group=self._group, name=_LIKE).tolist()
        choice = 0 if exchange is None else self._numbers.choose(exchange, set(alike))
        return int(arrays.all_reduce(np.array([choice]), Op.MAX, group=self._group, name=_LIKE)[0])

    def next(self, stand_in: Callable[[Told], TakesPart]) -> tuple[TakesPart, bool] | None:
        """Whose turn it is, and whether any rank has told a wish; None if no rank has batches any more.

        ``stand_in``: makes what takes part for an exchange that this rank lacks.
        """
        turn = self._tell(
            _Facts(0, False, False, True), _JOINED, ENDLESS
        )  # the others may go on without steps
        heard = turn.heard()
        if not heard.number and not heard.unsure:
            return None
        number = heard.number or self._agree(None)
        exchange = self._numbers.find(number)
        if self._numbers.is_new(number):
            self._numbers.has_a_turn(number)
            told = self._share(None, exchange is None)
            if exchange is None:
                exchange = stand_in(told)
                self._numbers.stand_in(number, exchange)
        if exchange is None:
            self._abort(
                f"rank {self._rank} has joined, and does not have optimizer {number} any more, which other ranks step: "
                "keep optimizers until join has returned"
            )
        return exchange, bool(heard.wish)

    @property
    def _rank(self) -> int:
        return self._group.native.ranks[self._group.rank]

    def _abort(self, text: str) -> NoReturn:
        self._group.session.abort(text)
        raise Aborted(text)

    def _tell(self, facts: _Facts, title: str, timeout: float = 0.0) -> Turn:
        """``title``: what reports call it while it waits for the other ranks."""
        memory = np.array(facts, np.int64)
        address = memory.ctypes.data
        work = addresses.all_reduce(
            self._group, address, address, memory.size, _I64, _MAX, name=_NAME, keep=memory, timeout=timeout
        )
        work.entitle(title)
        return Turn(memory, work, self._check_steps)

    def _share(self, told: Told | None, lacks: bool = False) -> Told:
        """Gives what the first rank tells that tells anything to all, if any rank ``lacks`` it. Every rank calls it.

        Returns what this rank told, or nothing, if none does.
        """
        line = np.frombuffer(b"" if told is None else json.dumps(told).encode(), np.uint8)
        mine = np.array([[line.size, lacks]], np.int64)
        sizes, lacking = arrays.all_gather(mine, group=self._group, name=_LIKE).T.tolist()
        if not any(lacking):
            return told or {}
        self._checks = True
        teller = next(rank for rank, size in enumerate(sizes) if size)
        given = line if self._group.rank == teller else np.empty(sizes[teller], np.uint8)
        found: Told = json.loads(arrays.broadcast(given, teller, group=self._group, name=_LIKE).tobytes())
        return found

    def last(self, helped: bool, waited: float) -> int:
        """The rank (its number in the job) that has joined last: it ``helped`` nobody, and ``waited`` least (seconds).

        Ranks that have called operations for each other, and have joined before these began, have all helped. All
        ranks call it once all have joined.
        """
        mine = np.array([[helped, waited, self._numbers.highest]], np.float64)
        everyone = np.asarray(arrays.all_gather(mine, group=self._group))
        highest = everyone[:, 2]
        self._checks = self._checks or bool((highest != highest[0]).any())
        self._numbers.all_have_joined(int(highest.max()))
        self._failed = self._compared = 0
        return self._group.ranks[int(np.lexsort(everyone[:, 1::-1].T)[0])]


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
