"""The numbers by which the ranks of a group know their exchanges, and what stands in where a rank has none.

The number of an exchange is its place among those that a rank has made, from 1: all ranks make them in one order. A
rank that has joined may lack one that the others step. They tell it what the exchange is like, and a stand-in takes
part for it. From then on places say nothing on this rank: an exchange that it makes has no number before its first
turn, in which it learns the number from the others. If there is a stand-in of that number, the exchange takes its
place.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection
from typing import Any, Protocol, TypeAlias

__all__ = ["Numbers", "TakesPart", "Told"]

Told: TypeAlias = "dict[str, Any]"
"""What JSON can carry of an exchange."""

_MOST_SHOWN = 200  # characters of what differs


class TakesPart(Protocol):
    """An exchange that the ranks of a group run together."""

    def take_part(self, wish: bool) -> None:
        """Runs it once without gradients of this rank; ``wish``: whether any rank has told one."""

    def same(self) -> Told:
        """What all ranks must have alike of it."""

    def told(self) -> Told:
        """What a rank that lacks it must know to take part; `same` is a part of it, by this name."""

    def numbered(self, number: int) -> None:
        """It has this number from now on."""

    def take_over(self, stand_in: Any) -> None:
        """Takes the place of one of the same class, which has taken part for this rank."""

    def rest(self) -> None:
        """Gives memory back that can be made anew: this one is a stand-in, and may not be needed again."""


class Numbers:
    """Those of one group, as this rank knows them."""

    def __init__(self) -> None:
        self._made: dict[int, weakref.ref[TakesPart]] = {}
        self._number_of: weakref.WeakKeyDictionary[TakesPart, int] = weakref.WeakKeyDictionary()
        self._without: list[weakref.ref[TakesPart]] = []  # those that have no number yet, in their order
        self._stand_ins: dict[int, TakesPart] = {}
        self._had_a_turn: set[int] = set()
        self._learns = False  # places on this rank say nothing
        self._highest = 0

    @property
    def highest(self) -> int:
        """The highest number that an exchange has."""
        return self._highest

    def add(self, exchange: TakesPart) -> None:
        """Takes note of a new one."""
        if self._learns:
            self._without.append(weakref.ref(exchange))
        else:
            self._give(exchange, self._highest + 1)

    def knows(self, exchange: TakesPart) -> bool:
        """Whether it has been added."""
        return exchange in self._number_of or any(one() is exchange for one in self._without)

    def of(self, exchange: TakesPart) -> int:
        """Its number; 0 if it has none yet."""
        return self._number_of.get(exchange, 0)

    def alike(self, same: Told) -> list[int]:
        """The numbers of this rank's own exchanges that are like one of which this is the same on all ranks."""
        gc.collect()  # what nobody uses any more may still be there, in a cycle
        made = [(number, reference()) for number, reference in self._made.items()]
        return [number for number, one in made if one is not None and one.same() == same]

    def choose(self, exchange: TakesPart, others: Collection[int]) -> int:
        """A number for one that has none, where no rank knows better: ranks make those that look alike in one order.

        ``others``: the numbers of those on all ranks that look like it.
        """
        same = exchange.same()
        waiting = [one for one in (reference() for reference in self._without) if one is not None]
        before = waiting[: waiting.index(exchange)]
        place = sum(one.same() == same for one in before)
        free = sorted(number for number in others if self._of_this_rank(number) is None)
        new = self._highest + 1 + place - len(free)
        return free[place] if place < len(free) else new

    def settle(self, exchange: TakesPart, number: int) -> str:
        """It has this number, as the ranks have agreed; returns what stands in the way, "" if nothing does."""
        own = self.of(exchange)
        if own:
            return "" if own == number else f"steps optimizer {own}, and another rank optimizer {number}"
        if self._of_this_rank(number) is not None:
            return f"steps an optimizer that is not optimizer {number}, which other ranks step"
        stand_in = self._stand_ins.get(number)
        if stand_in is not None:
            difference = _difference(exchange.same(), stand_in.same())
            if difference:
                return f"steps an optimizer that is not like optimizer {number} of the other ranks ({difference})"
            exchange.take_over(stand_in)
            del self._stand_ins[number]
        self._give(exchange, number)
        return ""

    def is_new(self, number: int) -> bool:
        """Whether no rank has had a turn of this one before."""
        return number not in self._had_a_turn

    def has_a_turn(self, number: int) -> None:
        """It is this one's turn: all ranks of the group learn of that."""
        self._had_a_turn.add(number)

    def find(self, number: int) -> TakesPart | None:
        """The one with this number, or what stands in for it; None if this rank has neither."""
        return self._of_this_rank(number) or self._stand_ins.get(number)

    def stand_in(self, number: int, exchange: TakesPart) -> None:
        """``exchange`` takes part for the one of this number."""
        self._stand_ins[number] = exchange
        self._highest = max(self._highest, number)
        self._learns = True

    def all_have_joined(self, highest: int) -> None:
        """``highest``: the highest number on any rank. Other ranks may have made exchanges meanwhile."""
        self._learns = self._learns or highest > self._highest
        self._highest = max(self._highest, highest)
        for one in self._stand_ins.values():
            one.rest()

    def _of_this_rank(self, number: int) -> TakesPart | None:
        return self._made[number]() if number in self._made else None

    def _give(self, exchange: TakesPart, number: int) -> None:
        self._made[number] = weakref.ref(exchange)
        self._number_of[exchange] = number
        self._without = [one for one in self._without if one() not in (None, exchange)]
        self._highest = max(self._highest, number)
        exchange.numbered(number)


def _difference(mine: Told, theirs: Told) -> str:
    """What ranks must have alike, and do not (`TakesPart.same`); "" if all is alike."""
    for what, here in mine.items():
        there = theirs.get(what)
        if here == there:
            continue
        if not isinstance(here, list) or not isinstance(there, list) or len(here) != len(there):
            return f"{what}: {here!s:.{_MOST_SHOWN}} here, {there!s:.{_MOST_SHOWN}} there"
        number = next(i for i, one in enumerate(here) if one != there[i])
        return f"{what}, number {number}: {here[number]} here, {there[number]} there"
    return ""
