"""Every rank talks to every other at once: the favourite on one host, where a message costs little.

Blocks are owned by ranks: block j is reduced by rank j, in the ring order j+1, j+2, ..., and all ranks send
in the order r-1, r-2, ..., so that what an owner needs first is what each rank sends first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from slipstream.plan.steps import Draft, Plan, Space

__all__ = [
    "QUEUED_BYTES",
    "all_gather",
    "all_gather_pass",
    "all_reduce",
    "all_to_all",
    "all_to_all_in_place",
    "all_to_all_in_rounds",
    "beginnings",
    "broadcast",
    "gather",
    "reduce_pass",
    "reduce_scatter",
    "scatter",
    "scatter_gather_reduce",
]

QUEUED_BYTES = 64 << 10  # of each sender, which the queues of a network are taken to hold
_SENDERS = 2  # that a port may have at a time: one keeps it busy while another one begins

Shards = Sequence[tuple[int, int]]  # (first block, count) of what each member owns


def reduce_pass(draft: Draft, members: Sequence[int], shards: Shards, dst: Space) -> int:
    """Reduce IN over ``members``, two at least, each into ``dst`` of its own shard.

    Returns the step after which the shard is reduced.
    """
    me = members.index(draft.rank)
    turns = range(1, len(members))
    for k in turns:
        owner = (me - k) % len(members)
        block, count = shards[owner]
        draft.send(members[owner], block, Space.IN, count=count)
    block, count = shards[me]
    last = -1
    for k in turns:
        peer = members[(me + k) % len(members)]
        src, after = (dst, (last,)) if k > 1 else (Space.IN, ())
        last = draft.recv_reduce(peer, block, src, dst, count=count, after=after)
    return last


def all_gather_pass(
    draft: Draft, members: Sequence[int], shards: Shards, src: Space, after: Sequence[int] = ()
) -> None:
    """Send ``src`` of this rank's shard to all members, as one multicast, and receive theirs into OUT."""
    me = members.index(draft.rank)
    turns = range(1, len(members))
    block, count = shards[me]
    for k in turns:
        draft.send(members[(me - k) % len(members)], block, src, count=count, after=after)
    for k in turns:
        other = (me + k) % len(members)
        block, count = shards[other]
        draft.recv(members[other], block, Space.OUT, count=count)


def _each_its_own(size: int) -> Shards:
    return [(block, 1) for block in range(size)]


def all_reduce(rank: int, size: int) -> Plan:
    """Reduce block j at rank j, then send it to all: 2 rounds, 2(n-1)/n of the data sent per rank."""
    draft = Draft("all_reduce", "direct", rank, size, size)
    members, shards = range(size), _each_its_own(size)
    reduced = reduce_pass(draft, members, shards, Space.OUT)
    finished = draft.finish(rank, Space.OUT, after=(reduced,))
    all_gather_pass(draft, members, shards, Space.OUT, (finished,))
    return draft.plan()


def reduce_scatter(rank: int, size: int) -> Plan:
    """Send block j to rank j, which reduces it into its OUT: one round, (n-1)/n of the data sent per rank."""
    draft = Draft("reduce_scatter", "direct", rank, size, size)
    reduced = reduce_pass(draft, range(size), _each_its_own(size), Space.OUT)
    draft.finish(rank, Space.OUT, after=(reduced,))
    return draft.plan()


def all_gather(rank: int, size: int) -> Plan:
    """Send the own block to all: one round, n-1 times the own block sent per rank."""
    draft = Draft("all_gather", "direct", rank, size, size)
    draft.copy(rank, Space.IN, Space.OUT)
    all_gather_pass(draft, range(size), _each_its_own(size), Space.IN)
    return draft.plan()


def scatter_gather_reduce(rank: int, size: int, root: int) -> Plan:
    """Reduce to ``root``: block j is reduced at rank j, which sends it to the root. For large data."""
    draft = Draft("reduce", "scatter_gather", rank, size, size)
    # Only the root's OUT exists.
    dst = Space.OUT if rank == root else Space.TMP
    reduced = reduce_pass(draft, range(size), _each_its_own(size), dst)
    finished = draft.finish(rank, dst, after=(reduced,))
    if rank != root:
        draft.send(root, rank, dst, after=(finished,))
        return draft.plan()
    for k in range(1, size):
        peer = (rank + k) % size
        draft.recv(peer, peer, Space.OUT)
    return draft.plan()


def broadcast(rank: int, size: int, root: int) -> Plan:
    """The root sends to all as one multicast: one round, staged once in shared memory."""
    draft = Draft("broadcast", "direct", rank, size, 1)
    if rank != root:
        draft.recv(root, 0, Space.OUT)
        return draft.plan()
    copied = draft.copy(0, Space.IN, Space.OUT)
    for k in range(1, size):
        draft.send((rank + k) % size, 0, Space.OUT, after=(copied,))
    return draft.plan()


def gather(rank: int, size: int, root: int) -> Plan:
    """Every rank sends its own block of IN to the root."""
    draft = Draft("gather", "linear", rank, size, size)
    if rank != root:
        draft.send(root, rank, Space.IN)
        return draft.plan()
    draft.copy(rank, Space.IN, Space.OUT)
    for k in range(1, size):
        peer = (rank + k) % size
        draft.recv(peer, peer, Space.OUT)
    return draft.plan()


def scatter(rank: int, size: int, root: int) -> Plan:
    """The root sends block j of its IN to rank j."""
    draft = Draft("scatter", "linear", rank, size, size)
    if rank != root:
        draft.recv(root, rank, Space.OUT)
        return draft.plan()
    draft.copy(rank, Space.IN, Space.OUT)
    for k in range(1, size):
        peer = (rank + k) % size
        draft.send(peer, peer, Space.IN)
    return draft.plan()


def all_to_all(rank: int, size: int) -> Plan:
    """Send block p to rank p and receive its block for us into OUT[p], in staggered order.

    IN and OUT must not share memory: in an exchange of a pair, nothing orders one's receive after the other's
    late read. ``all_to_all_in_place`` is for that.
    """
    draft = Draft("all_to_all", "pairwise", rank, size, size)
    draft.copy(rank, Space.IN, Space.OUT)
    for k in range(1, size):
        to, source = (rank + k) % size, (rank - k) % size
        draft.send(to, to, Space.IN)
        draft.recv(source, source, Space.OUT)
    return draft.plan()


def all_to_all_in_rounds(rank: int, size: int) -> Plan:
    """Pairwise all-to-all for one rank on each host: a port has two senders at most beyond what queues can hold.

    Blocks 2p and 2p + 1 are the beginning of what rank p gets (`beginnings`), and the rest. Beginnings go at once.
    A chunk of the rest goes to the next rank when that of the rank two places before has come. Where all send all they
    have at once, n-1 senders fill the queue before a port, and packets are lost. As in ``all_to_all``, IN and OUT must
    not share memory.
    """
    draft = Draft("all_to_all", "rounds", rank, size, 2 * size)
    draft.copy(2 * rank, Space.IN, Space.OUT, count=2)
    turns = range(1, size)
    for k in turns:
        draft.send((rank + k) % size, 2 * ((rank + k) % size), Space.IN)
        draft.recv((rank - k) % size, 2 * ((rank - k) % size), Space.OUT)
    came: list[int] = []
    for k in turns:
        to, source = (rank + k) % size, (rank - k) % size
        draft.send(
            to, 2 * to + 1, Space.IN, after=came[k - 1 - _SENDERS : k - _SENDERS] if k > _SENDERS else ()
        )
        came.append(draft.recv(source, 2 * source + 1, Space.OUT))
    return draft.plan()


def beginnings(offsets: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The offsets of `all_to_all_in_rounds`: each block between two of ``offsets``, in elements, in its two parts.

    Both ends of a message compute them of the size of its block alone.
    """
    most = QUEUED_BYTES // itemsize
    halves = ((begin, min(begin + most, end)) for begin, end in pairwise(offsets))
    return (*chain.from_iterable(halves), offsets[-1])


def all_to_all_in_place(rank: int, size: int) -> Plan:
    """Pairwise all-to-all that is right in place too, for blocks of equal sizes.

    The higher rank of a pair receives into TMP, so it never waits for its own send; the lower one receives
    over what it sent once that is done.
    """
    draft = Draft("all_to_all", "pairwise_in_place", rank, size, size)
    draft.copy(rank, Space.IN, Space.OUT)
    for k in range(1, size):
        peer = (rank + k) % size
        sent = draft.send(peer, peer, Space.IN)
        if rank < peer:
            draft.recv(peer, peer, Space.OUT, after=(sent,))
        else:
            received = draft.recv(peer, peer, Space.TMP)
            draft.copy(peer, Space.TMP, Space.OUT, after=(sent, received))
    return draft.plan()
