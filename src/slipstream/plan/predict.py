"""How long plans take: the plans of all ranks, played on a virtual clock with the costs of a Topology."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from slipstream.plan.order import match
from slipstream.plan.simulate import equal_cut
from slipstream.plan.steps import Kind, Plan, Step
from slipstream.plan.topology import Topology

__all__ = ["virtual_time"]

_Item = tuple[int, int, int]  # (rank, step, chunk)


class _Clock:
    def __init__(self, plans: Sequence[Plan], nbytes: int, topology: Topology, chunk_bytes: int) -> None:
        self.plans, self.topology = plans, topology
        self.partner = match(plans)
        self.cut = equal_cut(nbytes, plans[0].blocks)
        largest = max(b - a for a, b in zip(self.cut, self.cut[1:], strict=False))
        self.chunk_bytes = chunk_bytes
        self.chunks = max(1, -(-largest // chunk_bytes))
        self.followers: list[list[list[int]]] = [[[] for _ in plan.steps] for plan in plans]
        self.waits: dict[_Item, int] = {}
        for rank, plan in enumerate(plans):
            for index, step in enumerate(plan.steps):
                for earlier in step.after:
                    self.followers[rank][earlier].append(index)
                # A receive waits for its message too.
                waits = len(step.after) + (step.kind in (Kind.RECV, Kind.RECV_REDUCE))
                for chunk in range(self.chunks):
                    self.waits[rank, index, chunk] = waits
        self.free: dict[tuple[str, int], float] = defaultdict(float)  # when a port or a CPU is next free
        self.ready: dict[_Item, float] = defaultdict(float)
        # Runnable items by time, then by chunk: a chunk that began goes through first.
        self.queue: list[tuple[float, int, int, int]] = []
        self.end = 0.0

    def run(self) -> float:
        for (rank, index, chunk), waits in self.waits.items():
            if waits == 0:
                self.queue.append((0.0, chunk, rank, index))
        heapq.heapify(self.queue)
        while self.queue:
            now, chunk, rank, index = heapq.heappop(self.queue)
            step = self.plans[rank].steps[index]
            if step.kind == Kind.SEND:
                self._send(now, rank, index, chunk)
            else:
                self._compute(now, rank, index, chunk)
        return self.end

    def _bytes(self, step: Step, chunk: int) -> int:
        sizes = (self.cut[b + 1] - self.cut[b] for b in range(step.block, step.block + step.count))
        return sum(max(0, min(size - chunk * self.chunk_bytes, self.chunk_bytes)) for size in sizes)

    def _send(self, now: float, rank: int, index: int, chunk: int) -> None:
        peer, receive = self.partner[rank, index]
        hosts, network = self.topology.hosts, self.topology.network
        nbytes = self._bytes(self.plans[rank].steps[index], chunk)
        if hosts[rank] == hosts[peer]:
            alpha, beta, overhead = network.intra_alpha, network.intra_beta, network.intra_overhead
            out, into = ("to rank", rank), ("from rank", peer)
        else:
            alpha, beta, overhead = network.inter_alpha, network.inter_beta, network.inter_overhead
            out, into = ("to host", hosts[rank]), ("from host", hosts[peer])
        called = max(now, self.free["cpu", rank]) + overhead
        self.free["cpu", rank] = called
        # Both ports are taken for the time of the transfer; the receiver's, one latency later.
        left = max(called, self.free[out], self.free[into] - alpha) + nbytes * beta
        self.free[out] = left
        self.free[into] = left + alpha
        self._wake(left + alpha, (peer, receive, chunk))
        self._finish(left, rank, index, chunk)

    def _compute(self, now: float, rank: int, index: int, chunk: int) -> None:
        step = self.plans[rank].steps[index]
        done = now
        if step.kind in (Kind.RECV_REDUCE, Kind.REDUCE):
            done = max(now, self.free["cpu", rank]) + self._bytes(step, chunk) * self.topology.network.gamma
            self.free["cpu", rank] = done
        self._finish(done, rank, index, chunk)

    def _finish(self, now: float, rank: int, index: int, chunk: int) -> None:
        self.end = max(self.end, now)
        for follower in self.followers[rank][index]:
            self._wake(now, (rank, follower, chunk))

    def _wake(self, now: float, item: _Item) -> None:
        self.ready[item] = now = max(now, self.ready[item])
        self.waits[item] -= 1
        if self.waits[item] == 0:
            rank, index, chunk = item
            heapq.heappush(self.queue, (now, chunk, rank, index))


def virtual_time(plans: Sequence[Plan], nbytes: int, topology: Topology, chunk_bytes: int = 1 << 18) -> float:
    """Return the seconds until all ranks are done with ``nbytes`` of data, cut equally.

    ``plans[r]`` is the plan of rank r, living on ``topology.hosts[r]``. All chunks may be in flight at once.
    A message takes alpha + bytes x beta, occupies a full-duplex port at both ends (of the ranks within a
    host, of the hosts between them) and the sender's CPU for its overhead; reductions occupy the receiver's.
    Raises PlanError if the plans do not match, ValueError if the topology is of another size.
    """
    if topology.size != len(plans):
        raise ValueError(f"{len(plans)} plans for {topology.size} ranks")
    return _Clock(plans, nbytes, topology, chunk_bytes).run()
