"""Ranks whose operations have names, simulated in one process: `Agreement`, `Cycles` and `LockedOrder`, no sockets.

Each rank makes its calls in some threads. A `Simulation` lets one thing happen at a time, chosen at random: a call, a
batch that comes back, a round of all ranks, or a rank that has waited for long enough. So it sees every interleaving of
these that its random numbers lead to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.comm.negotiation.agreement import JOIN, Agreement, Decision, Request
from slipstream.comm.negotiation.order import Cycles, LockedOrder, share

Key = tuple[str, str]
Call = tuple[str, Request]  # "call" or "wait"


@dataclass
class Rank:
    """``threads``: what each still has to do. ``results``: of each operation, in order, its batch or round."""

    agreement: Agreement
    threads: list[deque[Call]]
    cycles: Cycles = field(default_factory=Cycles)
    order: LockedOrder | None = None
    orders: int = 0
    calls: dict[Key, Request] = field(default_factory=dict)
    open: dict[Key, Request] = field(default_factory=dict)
    flights: deque[tuple[int, int, bool]] = field(default_factory=deque)
    started: list[tuple[Key, ...]] = field(default_factory=list)
    results: dict[Key, list[str]] = field(default_factory=dict)
    pause: bool = False
    entries: list[Request | None] = field(default_factory=list)

    def deliver(self, keys: Sequence[Key], what: str) -> None:
        """These are done."""
        for key in keys:
            if key in self.calls:
                del self.calls[key]
                self.open.pop(key, None)
                self.results.setdefault(key, []).append(what)

    def new(self) -> list[Request]:
        """What it has not announced."""
        return [one for key, one in self.calls.items() if key not in self.open]


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
        return act[1].key not in rank.calls

    def _act(self, number: int, thread: deque[Call]) -> None:
        rank = self.ranks[number]
        self._is_quiet = False
        what, request = thread.popleft()
        if what == "wait":
            rank.pause = True
            return
        rank.calls[request.key] = request
        if rank.order is None:
            rank.entries += [None, request] if rank.pause else [request]
            rank.pause = False
            return
        if rank.order.over:
            return
        reason = rank.order.call(request)
        if reason:
            self._deviate(number, reason)
        else:
            self._launch(number)

    def _launch(self, number: int) -> None:
        order = self.ranks[number].order
        assert order is not None
        while order.ready() is not None:
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
            keys = order.batch(batch).keys
            rank.started.append(keys)
            rank.deliver(keys, f"batch {lock}/{batch}")

    def _round(self) -> None:
        self.rounds += 1
        self._is_quiet = False
        messages, fills = [], []
        for rank in self.ranks:
            order = rank.order
            new: list[Request | None] = list(rank.new()) if order is not None else []
            if order is None:
                known = {one.key for one in rank.entries if one is not None}
                new = [*[one for one in rank.new() if one.key not in known], *rank.entries]
            rank.entries = []
            for one in new:
                if one is not None:
                    rank.open[one.key] = one
            messages.append(
                rank.agreement.encode(new, order.launched if order else 0, order.deviates if order else "")
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
        rank.started += [tuple(one.key for one in part) for part in share(good, rank.agreement.room)]
        for one in decisions:
            rank.deliver([one.key], one.mismatch or f"round {self.rounds}")
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
        rank.order = order
        rank.orders += 1
        for request in list(rank.calls.values()):
            if not order.over:
                reason = order.call(request)
                if reason:
                    self._deviate(number, reason)
        self._launch(number)

    def check(self) -> None:
        """What holds for all ranks alike; results of ranks that have joined are those of the others."""
        first = self.ranks[0]
        for rank in self.ranks:
            assert rank.started == first.started, "one order on all ranks"
        for flags in self._launched.values():
            assert len(flags) == len(self.ranks), "no rank waits for a batch that another one never launches"


__all__ = ["JOIN", "Call", "Decision", "Key", "Rank", "Request", "Simulation"]
