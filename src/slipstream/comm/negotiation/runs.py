"""What repeats in a run of operations without names."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.comm.negotiation.agreement import Decision, Request

__all__ = ["Run", "Runs"]

_LONGEST = 256  # operations that repeat
_MOST_ALIKE = 1 << 12  # repetitions before a run is found, at most


@dataclass(frozen=True)
class Run:
    """Operations that have come several times, in this order. ``apart``: the places before which some rank waited."""

    requests: list[Request]
    apart: set[int]


class Runs:
    """Watches decisions about operations without names, as long as nothing comes between them.

    A repetition begins where a rank has waited: then what is called without a wait between is not cut. ``alike``: how
    often operations have to come. It doubles with each run that did not last.
    """

    def __init__(self, alike: int) -> None:
        self._alike = self._needed = alike
        self._requests: list[Request] = []
        self._waited: list[bool] = []  # whether a rank did so before it
        self._pauses: tuple[int, ...] = ()

    def note(self, decision: Decision) -> None:
        """Takes the next one."""
        self._requests.append(decision.request)
        self._waited.append(decision.pauses != self._pauses)
        self._pauses = decision.pauses
        most = _LONGEST * self._needed
        if len(self._requests) > 2 * most:
            del self._requests[:-most], self._waited[:-most]

    def end(self) -> None:
        """Something else comes."""
        self._requests, self._waited, self._pauses = [], [], ()

    def repeated(self) -> Run | None:
        """What has come often enough, and now comes again; the shortest that can be."""
        count = len(self._requests)
        for length in range(1, min(_LONGEST, count // self._needed) + 1):
            # Most lengths are ruled out by one look.
            if self._waited[count - length] and self._repeats(count, length):
                begin = count - self._needed * length
                apart = {(place - begin) % length for place in range(begin, count) if self._waited[place]} - {
                    0
                }
                return Run(self._requests[count - length :], apart)
        return None

    def unlocked(self, lasted: bool) -> None:
        """A run that was found has ended."""
        self._needed = self._alike if lasted else min(2 * self._needed, _MOST_ALIKE)
        self.end()

    def _repeats(self, count: int, length: int) -> bool:
        begins = range(count - length, count - self._needed * length - 1, -length)
        if not all(self._waited[place] for place in begins):
            return False
        first = count - self._needed * length
        if self._requests[first] != self._requests[count - length]:
            return False
        return self._requests[first : count - length] == self._requests[first + length : count]
