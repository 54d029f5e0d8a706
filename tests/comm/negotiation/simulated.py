"""Ranks whose operations are negotiated, simulated in one process: `Agreement`, `Cycles` and `LockedOrder`, no sockets.

Each rank makes its calls in some threads. A `Simulation` lets one thing happen at a time, chosen at random: a call, a
batch that comes back, a round of all ranks, or a rank that has waited for long enough. So it sees every interleaving of
these that its random numbers lead to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.comm.negotiation.agreement import JOIN, Agreement, Decision, Request, unnamed
from slipstream.comm.negotiation.order import Cycles, LockedOrder, share

Key = tuple[str, str]
Call = tuple[str, Request]  # "call" or "wait"


@dataclass
class Rank:
    """``threads``: what each still has to do. ``results``: of each operation, in order, its batch or round.

    ``calls``: by keys of this rank alone; ``open`` and ``held`` have those by what announcements and a locked order
    know them by.
    """

    agreement: Agreement
    threads: list[deque[Call]]
    cycles: Cycles = field(default_factory=Cycles)
    order: LockedOrder | None = None
    orders: int = 0
    calls: dict[Key, Request] = field(default_factory=dict)
    open: dict[Key, Key] = field(default_factory=dict)
    held: dict[Key, Key] = field(default_factory=dict)
    number: int = 0  # of the next call without a name
    next: int = 0  # of the next one that will be done
    flights: deque[tuple[int, int, bool]] = field(default_factory=deque)
    launched: dict[int, list[Key]] = field(default_factory=dict)  # by the number of the batch
    started: list[tuple[Key, ...]] = field(default_factory=list)
    results: dict[Key, list[str]] = field(default_factory=dict)
    pause: bool = False
    entries: list[Key | None] = field(default_factory=list)

    def take(self, request: Request) -> Key:
        """A call of it."""
        key = request.key
        if not request.has_name:
            key = unnamed(self.number)
            self.number += 1
        self.calls[key] = request
        return key

    def deliver(self, key: Key, what: str) -> None:
        """This call is done; those without a name are in the order of their calls."""
        request = self.calls.pop(key)
        if not request.has_name:
            assert key == unnamed(self.next)
            self.next += 1
        self.results.setdefault(request.key, []).append(what)

    def new(self) -> list[Key]:
        """What it has not announced."""
        announced = set(self.open.values())
        return [key for key in self.calls if key not in announced]


class Simulation:
    """``programs``: of each rank, the threads, and of each what it does. ``room``: bytes that share a buffer.

    ``impatience``: how often ranks give up their wait for a call of their own although something else can happen.

    ``rounds`` and ``launches`` count what travels; ``locks``, how often the order was locked.
    """

    def __init__(
        self,
        programs: Sequence[Sequence[Sequence[Call]]],
        rng: random.Random,
        room: int = 1 << 20,
        impatience: float = 0.05,
    ) -> None:
        ranks = range(len(programs))
        self.ranks = [
            Rank(Agreement(ranks, room), [deque(thread) for thread in threads]) for threads in programs
        ]
        self.rounds = self.launches = self.locks = 0
        self._rng = rng
        self._impatience = impatience
        self._is_quiet = False  # the latest round has told nothing new
        self._launched: dict[tuple[int, int], dict[int, bool]] = {}

    def run(self) -> None:
        """To the end; AssertionError where nothing can happen any more."""
        while True:
            happens = self._possible()
            if not happens or (self._is_quiet and happens == [self._round]):
                break
            self._rng.choice(happens)()
        left = [(rank.calls, rank.threads) for rank in self.ranks if rank.calls or any(rank.threads)]
        assert not left, left

    def _possible(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        late: list[Callable[[], None]] = []
        for number, rank in enumerate(self.ranks):
            for thread in rank.threads:
                if thread and self._may(rank, thread[0]):
                    found.append(lambda number=number, thread=thread: self._act(number, thread))  # type: ignore[misc]
            order = rank.order
            if order is None:
                continue
            if rank.flights and not order.void and self._is_back(rank.flights[0]):
                found.append(lambda number=number: self._land(number))  # type: ignore[misc]
            if not rank.flights and not order.over and order.held():
                late.append(lambda number=number: self._deviate(number, "waited"))  # type: ignore[misc]
        if all(self._takes_part(rank) for rank in self.ranks):
            found.append(self._round)
        return found if found and self._rng.random() >= self._impatience else found + late

    @staticmethod
    def _takes_part(rank: Rank) -> bool:
        return bool(rank.calls) if rank.order is None else rank.order.void

    @staticmethod
    def _may(rank: Rank, act: Call) -> bool:
        """Also where a name is free again: programs have to wait before they use one twice."""
        what, request = act
        if request.has_name:
            return request.key not in rank.calls
        return what == "call" or rank.next == rank.number

    def _act(self, number: int, thread: deque[Call]) -> None:
        rank = self.ranks[number]
        self._is_quiet = False
        what, request = thread.popleft()
        if what == "wait":
            rank.pause = True
            return
        key = rank.take(request)
        if rank.order is None:
            rank.entries += [None, key] if rank.pause else [key]
            rank.pause = False
            return
        self._submit(number, key)
        self._launch(number)

    def _submit(self, number: int, key: Key) -> None:
        rank = self.ranks[number]
        order = rank.order
        assert order is not None
        if order.over:
            return
        slot = order.key(rank.calls[key])
        reason = order.call(rank.calls[key])
        if reason:
            self._deviate(number, reason)
        else:
            rank.held[slot] = key

    def _launch(self, number: int) -> None:
        order = self.ranks[number].order
        assert order is not None
        while (batch := order.ready()) is not None:
            self.ranks[number].launched[order.launched] = [
                self.ranks[number].held.pop(slot) for slot in batch.keys
            ]
            order.launch()
            self._send(number, order.launched - 1, False)

    def _deviate(self, number: int, reason: str) -> None:
        order = self.ranks[number].order
        assert order is not None
        if order.deviate(reason):
            self._send(number, order.launched - 1, True)

    def _send(self, number: int, batch: int, flag: bool) -> None:
        rank = self.ranks[number]
        self.launches += 1
        self._launched.setdefault((rank.orders, batch), {})[number] = flag
        rank.flights.append((rank.orders, batch, flag))

    def _is_back(self, flight: tuple[int, int, bool]) -> bool:
        return len(self._launched[flight[:2]]) == len(self.ranks)

    def _land(self, number: int) -> None:
        rank = self.ranks[number]
        order = rank.order
        assert order is not None
        lock, batch, _ = rank.flights.popleft()
        void = any(self._launched[lock, batch].values())
        order.end(void)
        if not void:
            slots = order.batch(batch).keys
            rank.started.append(slots)
            for key in rank.launched[batch]:
                rank.deliver(key, f"batch {lock}/{batch}")

    def _round(self) -> None:
        self.rounds += 1
        self._is_quiet = False
        messages, fills = [], []
        for rank in self.ranks:
            order = rank.order
            new: list[Key | None] = list(rank.new()) if order is not None else []
            if order is None:
                new = [*[one for one in rank.new() if one not in rank.entries], *rank.entries]
            rank.entries = []
            keys = [one for one in new if one is not None]
            requests = [rank.calls[key] for key in keys]
            place = len(messages)
            rank.open.update(zip(rank.agreement.keys(place, requests), keys, strict=True))
            told = [None if one is None else rank.calls[one] for one in new]
            messages.append(
                rank.agreement.encode(told, order.launched if order else 0, order.deviates if order else "")
            )
            fills.append(order)
            if order is not None:
                rank.cycles.unlocked(order.ended)
                rank.order = None
        for number, (rank, order) in enumerate(zip(self.ranks, fills, strict=True)):
            self._decide(number, rank, order, messages)
        self._is_quiet = self.ranks[0].agreement.quiet
        locked = {rank.orders for rank in self.ranks}
        assert len(locked) == 1, "all ranks lock at once"

    def _decide(self, number: int, rank: Rank, before: LockedOrder | None, messages: Sequence[bytes]) -> None:
        decisions = rank.agreement.decide(messages)
        good = [one.request for one in decisions if not one.mismatch]
        rank.started += [tuple(good[i].key for i in part) for part in share(good, rank.agreement.room)]
        for one in decisions:
            if one.key in rank.open:
                rank.deliver(rank.open.pop(one.key), one.mismatch or f"round {self.rounds}")
            rank.cycles.note(one)
        if before is not None:
            for batch in range(before.launched, rank.agreement.launched):
                self._send(number, batch, True)
            rank.flights.clear()
        order = None if rank.agreement.anyone_joined else rank.cycles.locked(rank.agreement.room)
        if order is None:
            return
        self.locks += number == 0
        rank.agreement.forget()
        rank.open.clear()
        rank.held.clear()
        rank.launched.clear()
        rank.order = order
        rank.orders += 1
        for key in list(rank.calls):
            self._submit(number, key)
        self._launch(number)

    def check(self) -> None:
        """What holds for all ranks alike; results of ranks that have joined are those of the others."""
        first = self.ranks[0]
        for rank in self.ranks:
            assert rank.started == first.started, "one order on all ranks"
        for flags in self._launched.values():
            assert len(flags) == len(self.ranks), "no rank waits for a batch that another one never launches"


__all__ = ["JOIN", "Call", "Decision", "Key", "Rank", "Request", "Simulation"]
