"""The memory of operations in flight: which of them a later call on the same memory has to wait for."""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["InFlight", "Memory"]

_T = TypeVar("_T")


class Memory(Protocol):
    """What an operation reads or writes."""

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """The addresses that it lies between."""

    def meets(self, other: Any) -> bool:
        """Whether the two share memory, and one of them writes it."""


class InFlight(Generic[_T]):
    """Operations, and their memory. Several threads may change it, and signals' handlers amid another call.

    There is no lock, which a handler could not take. Each look is at copies; what comes is visible when it is whole.
    """

    def __init__(self) -> None:
        self._memory: dict[_T, Memory] = {}
        self._numbers: dict[_T, int] = {}
        self._operations: dict[int, _T] = {}
        self._spans: list[tuple[int, int, int]] = []  # sorted; the last is the operation's number
        # How many bits the lengths have that there have been. To add one to a set is a single step.
        self._bits: set[int] = set()
        self._next = itertools.count()

    def add(self, operation: _T, memory: Memory) -> None:
        """It is under way."""
        number = next(self._next)
        self._memory[operation], self._numbers[operation], self._operations[number] = (
            memory,
            number,
            operation,
        )
        for begin, end in memory.spans:
            self._bits.add((end - begin).bit_length())
            insort(self._spans, (begin, end, number))

    def drop(self, operation: _T) -> None:
        """It is over, if it was under way."""
        number = self._numbers.pop(operation, None)
        memory = self._memory.pop(operation, None)
        if number is None or memory is None:
            return
        for begin, end in memory.spans:
            with contextlib.suppress(ValueError):  # `clear` came before
                self._spans.remove((begin, end, number))
        self._operations.pop(number, None)

    def meeting(self, memory: Memory) -> list[_T]:
        """Those that meet this memory, in the order in which they came."""
        spans = self._spans.copy()
        longest = 1 << max(self._bits, default=0)
        found: set[int] = set()
        for begin, end in memory.spans if spans else ():
            first = bisect_left(spans, (begin - longest,))
            last = bisect_left(spans, (end,))
            found.update(number for _, its_end, number in spans[first:last] if its_end > begin)
        near = [self._operations.get(number) for number in sorted(found)]
        known = [(one, self._memory.get(one)) for one in near if one is not None]
        return [one for one, its in known if its is not None and its.meets(memory)]

    def clear(self) -> None:
        """Nothing is under way."""
        for operation in list(self._numbers):
            self.drop(operation)
