"""Proves that plans of all ranks are right in every order of events, without running them.

Chunks never depend on each other, so one chunk stands for all. The events of one chunk form a graph: a step
starts after what it waits for is done, and a receive acts after the matching send has started. Then

- sends match receives, or the pairing itself fails;
- no order deadlocks, if the graph has no cycle even when every send lasts until its receiver has consumed it;
- every order computes the same, if any two accesses to the same memory of which one writes are ordered by the
  graph, however early or late sends read. (A send has read at the latest when the matching receive is done,
  and when it is done itself.)

So one run of ``simulate`` speaks for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.plan.steps import Kind, Plan, Space, Step

__all__ = ["PlanError", "match", "prove"]


class PlanError(ValueError):
    """Plans of several ranks that do not fit together."""


_Place = tuple[int, int]  # (rank, index of the step)


class _Access(NamedTuple):
    step: int
    writes: bool
    begins: int  # an event
    ends: tuple[int, ...]  # events, each of which is after the access


def match(plans: Sequence[Plan]) -> dict[_Place, _Place]:
    """Return for each send, as (rank, step), its receive, and for each receive its send.

    Raises PlanError if they are not equally many, or cover different numbers of blocks.
    """
    sends: dict[tuple[int, int], list[_Place]] = defaultdict(list)
    receives: dict[tuple[int, int], list[_Place]] = defaultdict(list)
    for rank, plan in enumerate(plans):
        if plan.rank != rank or plan.size != len(plans) or plan.blocks != plans[0].blocks:
            raise PlanError(f"plan {rank} of {len(plans)} is for rank {plan.rank} of {plan.size}")
        for index, step in enumerate(plan.steps):
            if step.kind == Kind.SEND:
                sends[rank, step.peer].append((rank, index))
            elif step.kind in (Kind.RECV, Kind.RECV_REDUCE):
                receives[step.peer, rank].append((rank, index))
    partner: dict[_Place, _Place] = {}
    for pair in sends.keys() | receives.keys():
        if len(sends[pair]) != len(receives[pair]):
            raise PlanError(
                f"rank {pair[0]} sends {len(sends[pair])} times to {pair[1]}, "
                f"which receives {len(receives[pair])} times"
            )
        for a, b in zip(sends[pair], receives[pair], strict=True):
            if plans[a[0]].steps[a[1]].count != plans[b[0]].steps[b[1]].count:
                raise PlanError(
                    f"step {a[1]} of rank {a[0]} sends other blocks than step {b[1]} of rank {b[0]}"
                )
            partner[a], partner[b] = b, a
    return partner


class _Events:
    """The events of all steps: each starts, acts (a receive, once its send has started), and is done."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans
        self.partner = match(plans)
        self.first = [0]
        for plan in plans:
            self.first.append(self.first[-1] + len(plan.steps))
        self.count = 3 * self.first[-1]
        self.edges: list[list[int]] = [[] for _ in range(self.count)]
        for rank, plan in enumerate(plans):
            for index, step in enumerate(plan.steps):
                start, act, done = (self.event(rank, index, phase) for phase in range(3))
                self.edges[start].append(act)
                self.edges[act].append(done)
                for earlier in step.after:
                    self.edges[self.event(rank, earlier, 2)].append(start)
                if step.kind == Kind.SEND:
                    self.edges[start].append(self.event(*self.partner[rank, index], 1))

    def event(self, rank: int, step: int, phase: int) -> int:
        """Return the event of a step: 0 starts, 1 acts, 2 is done."""
        return 3 * (self.first[rank] + step) + phase

    def sorted(self, rendezvous: bool) -> list[int]:
        """Return the events in an order that fits the graph; PlanError names steps of a cycle."""
        edges = self.edges
        if rendezvous:
            edges = [list(after) for after in edges]
            for (rank, index), (peer, other) in self.partner.items():
                if self.plans[rank].steps[index].kind == Kind.SEND:
                    edges[self.event(peer, other, 2)].append(self.event(rank, index, 2))
        waits = [0] * self.count
        for after in edges:
            for event in after:
                waits[event] += 1
        order = [event for event in range(self.count) if waits[event] == 0]
        for event in order:
            for following in edges[event]:
                waits[following] -= 1
                if waits[following] == 0:
                    order.append(following)
        if len(order) < self.count:
            stuck = next(event for event in range(self.count) if waits[event] > 0)
            rank = max(r for r in range(len(self.plans)) if self.first[r] <= stuck // 3)
            raise PlanError(
                f"deadlock: step {stuck // 3 - self.first[rank]} of rank {rank} can wait for ever"
            )
        return order

    def reach(self) -> list[int]:
        """Return for each event, as a bit set, the events that always come after it, and itself."""
        after = [0] * self.count
        for event in reversed(self.sorted(rendezvous=False)):
            seen = 1 << event
            for following in self.edges[event]:
                seen |= after[following]
            after[event] = seen
        return after

    def accesses(self, rank: int, in_place: bool) -> dict[tuple[Space, int], list[_Access]]:
        """Return who touches each (space, block) of a rank."""
        found: dict[tuple[Space, int], list[_Access]] = defaultdict(list)
        for index, step in enumerate(self.plans[rank].steps):
            ends = [self.event(rank, index, 2)]
            if step.kind == Kind.SEND:
                ends.append(self.event(*self.partner[rank, index], 2))
            begins = self.event(rank, index, 1)
            touched: dict[Space, bool] = {}
            for space, writes in _spaces(step):
                memory = Space.OUT if in_place and space == Space.IN else space
                touched[memory] = touched.get(memory, False) or writes
            if step.kind == Kind.COPY and len(touched) == 1:
                continue  # onto itself
            for memory, writes in touched.items():
                for block in range(step.block, step.block + step.count):
                    found[memory, block].append(_Access(index, writes, begins, tuple(ends)))
        return found


def _spaces(step: Step) -> list[tuple[Space, bool]]:
    """Return the spaces a step touches, and whether it writes them."""
    if step.kind == Kind.SEND:
        return [(step.src, False)]
    if step.kind in (Kind.RECV, Kind.FINISH):
        return [(step.dst, True)]
    return [(step.src, False), (step.dst, True)]


def prove(plans: Sequence[Plan], in_place: bool) -> None:
    """Raise PlanError unless the plans match, never deadlock, and compute the same in every order.

    ``plans[r]`` is the plan of rank r; ``in_place``: IN and OUT of every rank are the same memory.
    """
    events = _Events(plans)
    events.sorted(rendezvous=True)
    after = events.reach()

    def ordered(a: _Access, b: _Access) -> bool:
        return any(after[end] >> b.begins & 1 for end in a.ends)

    for rank in range(len(plans)):
        for (space, block), accesses in events.accesses(rank, in_place).items():
            for i, a in enumerate(accesses):
                for b in accesses[i + 1 :]:
                    if (a.writes or b.writes) and not ordered(a, b) and not ordered(b, a):
                        raise PlanError(
                            f"race: nothing orders steps {a.step} and {b.step} of rank {rank}, "
                            f"which both touch {space.name}[{block}]"
                        )
