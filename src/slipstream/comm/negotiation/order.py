"""The locked order: ranks that call the same operations again and again start them without a message. All is pure.

Operations without a name are the same if they are at the same place among those without one, on all ranks.

Operations are cut into *batches*. A rank launches a batch when it has called all of its operations and launched the
batch before. A batch is one small all-reduce: its sums, if these share a buffer, and a flag. Otherwise it holds one
operation, which starts when the flag has come back (the batch is a *gate*). A rank that cannot go on in this order
launches its next batch with the flag up, and no more after it. So all ranks learn which batch is the first that is
void; what they have launched after that is void, too. They tell each other how far they have launched, complete that
with flags up, and agree on all that has not ended by announcements (`Agreement`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from slipstream.base.dtypes import DType, Op
from slipstream.comm.negotiation.agreement import JOIN, Decision, Key, Request, Sum, unnamed
from slipstream.comm.negotiation.runs import Runs

__all__ = ["MOST_SHARED", "Batch", "Cycles", "LockedOrder", "share"]

MOST_SHARED = 128 << 10
"""Bytes of a sum that shares a buffer: above, the price is in the bytes, not in the messages."""
_LONGEST = 4096  # operations in a cycle
_ALIKE, _MOST_ALIKE = 3, 48  # cycles that were the same before the order is locked, at first and at most
_LONG = 100  # batches of a locked order that was worth it
# A flag in a buffer of these comes back from any number of ranks.
_FLAGGED = frozenset(
    [
        (int(dtype), int(op))
        for dtype in (DType.F32, DType.F64, DType.F16, DType.BF16)
        for op in (Op.SUM, Op.AVG)
    ]
    + [(int(dtype), int(Op.SUM)) for dtype in (DType.I32, DType.I64)]
)


@dataclass(frozen=True)
class Batch:
    """Operations that start together. ``sum``: what shares the buffer; None: a gate, of one operation.

    ``keys``: of its operations in the cycle. Those without a name are numbered from 0, in the order of the cycle.
    """

    requests: tuple[Request, ...]
    sum: Sum | None
    keys: tuple[Key, ...]

    @cached_property
    def label(self) -> str:
        """What errors call it."""
        names = [one.title for one in self.requests[:5]]
        more = len(self.requests) - len(names)
        return ", ".join(names) + (f" and {more} more" if more else "")


def share(requests: Sequence[Request], room: int, apart: Collection[int] = ()) -> list[range]:
    """Cuts a list of operations into those that share buffers of at most ``room`` bytes; ``apart``: where to cut.

    Returns the places in the list of each part.
    """
    found: list[range] = []
    alike: tuple[float, ...] = ()  # of the last buffer; it has ``left`` bytes left
    left = 0
    for place, request in enumerate(requests):
        one = request.sum
        small = one is not None and one.nbytes <= min(room, MOST_SHARED)
        if one is not None and small and place not in apart and one.nbytes <= left and one.alike == alike:
            found[-1] = range(found[-1].start, place + 1)
            left -= one.nbytes
        else:
            found.append(range(place, place + 1))
            alike, left = (one.alike, room - one.nbytes) if one is not None and small else ((), 0)
    return found


def _batch(requests: Sequence[Request], keys: Sequence[Key]) -> Batch:
    sums = [one.sum for one in requests if one.sum is not None]
    first = sums[0] if sums else None
    flagged = (
        first is not None
        and first.alike[2:] == (1.0, 1.0)
        and first.alike[:2] in _FLAGGED
        and first.nbytes <= MOST_SHARED
    )
    if first is None or not flagged:
        return Batch(tuple(requests), None, tuple(keys))
    whole = Sum(first.dtype, first.op, sum(one.elements for one in sums), sum(one.nbytes for one in sums))
    return Batch(tuple(requests), whole, tuple(keys))


def _batches(
    requests: Sequence[Request], keys: Sequence[Key], room: int, apart: Collection[int]
) -> list[Batch]:
    """A buffer without room for a flag is not shared: each of its operations passes a gate of its own."""
    found: list[Batch] = []
    for part in share(requests, room, apart):
        whole = _batch(requests[part.start : part.stop], keys[part.start : part.stop])
        alone = [_batch([requests[one]], [keys[one]]) for one in part]
        found += [whole] if whole.sum is not None else alone
    return found


class Cycles:
    """Watches decisions for operations that come again and again, on all ranks alike.

    A cycle ends where a name comes again. What has no name counts by its place among those without one in the cycle.
    Operations that come without any name between them have no such end: `Runs` finds what repeats there.
    """

    def __init__(self) -> None:
        self._needed = _ALIKE
        self._now: dict[Key, Decision] = {}
        self._without = 0  # how many of them have no name
        self._before: list[dict[Key, Decision]] = []  # the last ones that were alike
        self._alike = 0  # how many were
        self._runs = Runs(_ALIKE)
        self._by_run = False  # how the order was found

    def note(self, decision: Decision) -> None:
        """Takes the next one."""
        if decision.mismatch or decision.joined or decision.key[0] == JOIN or len(self._now) == _LONGEST:
            self._forget()
            return
        key = decision.key
        if decision.request.has_name:
            self._runs.end()
        else:
            self._runs.note(decision)
            key = unnamed(self._without)
            self._without += 1
        if key in self._now:
            if self._before and _requests(self._before[-1]) != _requests(self._now):
                self._alike = 0
            self._alike += 1
            self._before = [*self._before[1 - _ALIKE :], self._now]
            self._now, self._without = {}, 0
        self._now[key] = decision

    def locked(self, room: int) -> LockedOrder | None:
        """The order from now on, once the cycles have been alike for long enough."""
        found = self._locked_cycle(room)
        self._by_run = found is None
        if found is None:
            found = self._locked_run(room)
        if found is not None:
            self._forget()
        return found

    def _locked_cycle(self, room: int) -> LockedOrder | None:
        if self._alike < self._needed or not self._now:
            return None
        last = self._before[-1]
        if any(key not in last or last[key].request != one.request for key, one in self._now.items()):
            return None
        keys = [*self._now, *(key for key in last if key not in self._now)]
        begun = len(self._now)
        pauses = [one.pauses for one in self._now.values()]
        cycles = self._before
        apart = {
            place
            for place in range(1, len(keys))
            if place == begun or any(one[keys[place]].pauses != one[keys[place - 1]].pauses for one in cycles)
        }
        apart |= {place for place in range(1, begun) if pauses[place] != pauses[place - 1]}
        batches = _batches([last[key].request for key in keys], keys, room, apart)
        start, left = 0, begun
        while left:
            left -= len(batches[start].requests)
            start += 1
        return LockedOrder(batches, start)

    def _locked_run(self, room: int) -> LockedOrder | None:
        run = self._runs.repeated()
        if run is None:
            return None
        return LockedOrder(
            _batches(run.requests, [unnamed(i) for i in range(len(run.requests))], room, run.apart)
        )

    def unlocked(self, completed: int) -> None:
        """An order of which so many batches ended well is given up: the more often, the longer the next one takes."""
        if self._by_run:
            self._runs.unlocked(completed >= _LONG)
        else:
            self._needed = _ALIKE if completed >= _LONG else min(2 * self._needed, _MOST_ALIKE)
        self._forget()

    def _forget(self) -> None:
        self._now, self._before, self._alike, self._without = {}, [], 0, 0
        self._runs.end()


def _requests(cycle: dict[Key, Decision]) -> dict[Key, Request]:
    return {key: one.request for key, one in cycle.items()}


class LockedOrder:
    """Where one rank is in a cycle of batches, which begins with number ``start``.

    ``launched``: how many batches; ``ended``: how many of them were found valid, or the first that was void.
    """

    def __init__(self, batches: Sequence[Batch], start: int = 0) -> None:
        self.batches = tuple(batches)
        self.launched = 0
        self.ended = 0
        self.deviates = ""  # why this rank does
        self.void = False
        self._start = start
        self._requests = {
            key: one for batch in self.batches for key, one in zip(batch.keys, batch.requests, strict=True)
        }
        # In the order of the cycle, and which of them is this rank's next one.
        self._without_names = [key for key in self._requests if not key[0]]
        self._next = sum(not key[0] for batch in self.batches[:start] for key in batch.keys)
        self._called: set[Key] = set()

    def __len__(self) -> int:
        return len(self._requests)

    def batch(self, number: int) -> Batch:
        """The one that is launched as number ``number``, from 0."""
        return self.batches[(self._start + number) % len(self.batches)]

    def key(self, request: Request) -> Key:
        """What it is known by in the cycle, if this rank calls it now."""
        if request.has_name or not self._without_names:
            return request.key
        return self._without_names[self._next % len(self._without_names)]

    def is_next_alone(self, request: Request) -> bool:
        """Whether the next batch is this sum and no other operation. Needs no lock."""
        batch = self.batch(self.launched)
        return batch.sum is not None and len(batch.keys) == 1 and self._requests[batch.keys[0]] is request

    def take_alone(self, request: Request) -> Batch | None:
        """Takes a call of this rank and launches its batch, if that is next, and this sum alone."""
        if self._called or self.void or self.deviates or not self.is_next_alone(request):
            return None
        batch = self.batch(self.launched)
        key = batch.keys[0]
        if not key[0]:
            if key is not self._without_names[self._next % len(self._without_names)]:
                return None
            self._next += 1
        self.launched += 1
        return batch

    def call(self, request: Request) -> str:
        """Takes a call of this rank. Returns why it cannot be in this order, or ""."""
        key = self.key(request)
        known = self._requests.get(key)
        if known is not request:
            if known is None:
                return f"called {request.title}, which is not in the cycle"
            if known != request:
                return f"called {request.title} with {request.facts}, not {known.title} with {known.facts}"
            self._requests[key] = request  # the next look is quicker
        if key in self._called:
            return f"called {request.title} once more, before {self.lacks()}"
        self._called.add(key)
        self._next += not key[0]
        return ""

    @property
    def over(self) -> bool:
        """Whether this rank launches no more."""
        return self.void or bool(self.deviates)

    def ready(self) -> Batch | None:
        """The next batch, if it can be launched."""
        if self.void or self.deviates or not self._called:
            return None
        batch = self.batch(self.launched)
        return batch if self._called.issuperset(batch.keys) else None

    def launch(self) -> None:
        """Takes note that the next batch has been."""
        self._called.difference_update(self.batch(self.launched).keys)
        self.launched += 1

    def held(self) -> list[Key]:
        """What this rank has called and cannot launch."""
        return [] if self.ready() else list(self._called)

    def titles(self, keys: Sequence[Key]) -> list[str]:
        """What texts call these of the cycle."""
        return [self._requests[key].title for key in keys]

    def lacks(self) -> str:
        """What it has not called of its next batch."""
        missing = [key for key in self.batch(self.launched).keys if key not in self._called]
        return self.titles(missing[:1])[0] if missing else ""

    def deviate(self, reason: str) -> bool:
        """This rank cannot go on. Returns whether it has to launch its next batch with the flag up."""
        if self.over:
            return False
        self.deviates = reason
        self.launched += 1
        return True

    def end(self, void: bool) -> None:
        """The oldest batch under way has come back."""
        self.void = void
        self.ended += not void
