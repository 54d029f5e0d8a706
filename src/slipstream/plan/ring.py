"""Rings: each rank sends to the next only, so that n ranks need n links and every link carries the same.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009). One pass
with two operators: partial sums travel round the ring until each has met every rank, then results do.

``ring`` is an order of ranks and ``blocks[i]`` the block that ends up at its i-th member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slipstream.plan.steps import Draft, Plan, Space
from slipstream.plan.topology import by_host

__all__ = [
    "all_gather",
    "all_gather_pass",
    "all_reduce",
    "bidirectional_all_reduce",
    "chain_broadcast",
    "chain_reduce",
    "reduce_pass",
    "reduce_scatter",
]


def reduce_pass(
    draft: Draft,
    ring: Sequence[int],
    blocks: Sequence[int],
    source: Space,
    partial: Space,
    result: Space,
    after: Iterable[int] = (),
) -> int:
    """Add ``source`` of all members: sums on their way are kept in ``partial``, the own block in ``result``.

    Returns the step after which the own block is reduced. ``after`` is what ``source`` waits for.
    """
    size = len(ring)
    me = ring.index(draft.rank)
    after = tuple(after)
    last = -1
    for k in range(size - 1):
        outgoing, incoming = blocks[(me - 1 - k) % size], blocks[(me - 2 - k) % size]
        if k == 0:
            draft.send(ring[(me + 1) % size], outgoing, source, after=after)
        else:
            draft.send(ring[(me + 1) % size], outgoing, partial, after=(last,))
        dst = result if k == size - 2 else partial
        last = draft.recv_reduce(ring[me - 1], incoming, source, dst, after=after)
    return last


def all_gather_pass(
    draft: Draft, ring: Sequence[int], blocks: Sequence[int], source: Space, after: Iterable[int] = ()
) -> list[int]:
    """Pass each member's own block (in ``source``) round the ring into OUT. Returns the receiving steps."""
    size = len(ring)
    me = ring.index(draft.rank)
    after = tuple(after)
    received: list[int] = []
    for k in range(size - 1):
        src = Space.OUT if received else source
        draft.send(ring[(me + 1) % size], blocks[(me - k) % size], src, after=received[-1:] or after)
        received.append(draft.recv(ring[me - 1], blocks[(me - 1 - k) % size], Space.OUT))
    return received


def all_reduce(rank: int, size: int, hosts: Sequence[int] | None) -> Plan:
    """Reduce-scatter, then all-gather: 2(n-1) rounds, 2(n-1)/n of the data sent per rank: the optimum."""
    draft = Draft("all_reduce", "ring", rank, size, size)
    ring = by_host(size, hosts)
    reduced = reduce_pass(draft, ring, ring, Space.IN, Space.OUT, Space.OUT)
    finished = draft.finish(rank, Space.OUT, after=(reduced,))
    all_gather_pass(draft, ring, ring, Space.OUT, (finished,))
    return draft.plan()


def bidirectional_all_reduce(rank: int, size: int, hosts: Sequence[int] | None) -> Plan:
    """Half of the data goes each way round: bytes and rounds of the ring, both directions of links busy."""
    draft = Draft("all_reduce", "bidirectional_ring", rank, size, 2 * size)
    ring = by_host(size, hosts)
    ways = [(ring, ring), (ring[::-1], [size + member for member in ring[::-1]])]
    finished = []
    for order, blocks in ways:
        reduced = reduce_pass(draft, order, blocks, Space.IN, Space.OUT, Space.OUT)
        finished.append(draft.finish(blocks[order.index(rank)], Space.OUT, after=(reduced,)))
    for (order, blocks), ready in zip(ways, finished, strict=True):
        all_gather_pass(draft, order, blocks, Space.OUT, (ready,))
    return draft.plan()


def reduce_scatter(rank: int, size: int, hosts: Sequence[int] | None) -> Plan:
    """n-1 rounds, (n-1)/n of the data sent per rank; sums on their way are kept in TMP."""
    draft = Draft("reduce_scatter", "ring", rank, size, size)
    ring = by_host(size, hosts)
    reduced = reduce_pass(draft, ring, ring, Space.IN, Space.TMP, Space.OUT)
    draft.finish(rank, Space.OUT, after=(reduced,))
    return draft.plan()


def all_gather(rank: int, size: int, hosts: Sequence[int] | None) -> Plan:
    """n-1 rounds; every rank sends all blocks but the next rank's."""
    draft = Draft("all_gather", "ring", rank, size, size)
    ring = by_host(size, hosts)
    draft.copy(rank, Space.IN, Space.OUT)
    all_gather_pass(draft, ring, ring, Space.IN)
    return draft.plan()


def _chain(size: int, root: int, hosts: Sequence[int] | None) -> list[int]:
    """The ring from ``root`` on."""
    ring = by_host(size, hosts)
    start = ring.index(root)
    return ring[start:] + ring[:start]


def chain_broadcast(rank: int, size: int, root: int, hosts: Sequence[int] | None) -> Plan:
    """Root to next to next: with many chunks in flight the time is that of one transfer. For large data."""
    draft = Draft("broadcast", "chain", rank, size, 1)
    chain = _chain(size, root, hosts)
    me = chain.index(rank)
    ready = draft.copy(0, Space.IN, Space.OUT) if me == 0 else draft.recv(chain[me - 1], 0, Space.OUT)
    if me + 1 < size:
        draft.send(chain[me + 1], 0, Space.OUT, after=(ready,))
    return draft.plan()


def chain_reduce(rank: int, size: int, root: int, hosts: Sequence[int] | None) -> Plan:
    """The chain of a broadcast backwards: each adds its data to what comes, and sends it on. For large data.

    With many chunks in flight the time is that of one transfer: half of what a root that gathers parts needs, or less.
    """
    draft = Draft("reduce", "chain", rank, size, 1)
    chain = _chain(size, root, hosts)
    me = chain.index(rank)
    src, ready = Space.IN, ()  # type: tuple[Space, tuple[int, ...]]
    if me + 1 < size:
        src = Space.TMP if me else Space.OUT  # only the root's OUT exists
        ready = (draft.recv_reduce(chain[me + 1], 0, Space.IN, src),)
    if me:
        draft.send(chain[me - 1], 0, src, after=ready)
    else:
        draft.finish(0, Space.OUT, after=ready)
    return draft.plan()
