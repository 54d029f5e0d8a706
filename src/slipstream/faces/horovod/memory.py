"""The memory of operations in flight: which of them a later call on the same memory has to wait for."""

from __future__ import annotations

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
    """Operations, and their memory. A signal's handler may call operations amid another call: each step is whole."""

    def __init__(self) -> None:
        self._memory: dict[_T, Memory] = {}
        self._numbers: dict[_T, int] = {}
        self._operations: dict[int, _T] = {}
        self._spans: list[tuple[int, int, int]] = []  # sorted; the last is the operation's number
        self._longest = 0
        self._next = 0

    def add(self, operation: _T, memory: Memory) -> None:
        """It is under way."""
        number = self._next
        self._next += 1
        self._memory[operation], self._numbers[operation], self._operations[number] = (
            memory,
            number,
            operation,
        )
        for begin, end in memory.spans:
            self._longest = max(self._longest, end - begin)
            insort(self._spans, (begin, end, number))

    def drop(self, operation: _T) -> None:
        """It is over, if it was under way."""
        number = self._numbers.pop(operation, None)
        if number is None:
            return
        for begin, end in self._memory.pop(operation).spans:
            self._spans.remove((begin, end, number))
        del self._operations[number]
        if not self._spans:
            self._longest = 0

    def meeting(self, memory: Memory) -> list[_T]:
        """Those that meet this memory, in the order in which they came."""
        if not self._spans:
            return []
        found: set[int] = set()
        for begin, end in memory.spans:
            first = bisect_left(self._spans, (begin - self._longest,))
            last = bisect_left(self._spans, (end,))
            found.update(number for _, its_end, number in self._spans[first:last] if its_end > begin)
        near = [self._operations[number] for number in sorted(found) if number in self._operations]
        return [one for one in near if self._memory[one].meets(memory)]

    def clear(self) -> None:
        """Nothing is under way."""
        for operation in list(self._numbers):
            self.drop(operation)
