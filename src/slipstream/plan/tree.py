"""Binomial trees: log2(n) rounds to or from a root. For small data, and for broadcasts over many hosts.

Ranks are counted from the root: v = rank - root. The parent of v is v without its lowest set bit.
"""

from __future__ import annotations

from slipstream.plan.steps import Draft, Plan, Space

__all__ = ["all_reduce", "broadcast", "reduce"]


def _relatives(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
    """Return the parent (None for the root) and the children, the one with the smallest subtree first."""
    v = (rank - root) % size
    lowest = v & -v if v else 1 << size.bit_length()
    children = []
    bit = 1
    while bit < lowest and v + bit < size:
        children.append((v + bit + root) % size)
        bit *= 2
    return (None if v == 0 else ((v & (v - 1)) + root) % size), children


def _broadcast(draft: Draft, root: int, ready: tuple[int, ...]) -> None:
    parent, children = _relatives(draft.rank, draft.size, root)
    if parent is not None:
        ready = (draft.recv(parent, 0, Space.OUT),)
    # The largest subtree has the longest way to go. Equal steps in a row are one multicast.
    for child in reversed(children):
        draft.send(child, 0, Space.OUT, after=ready)


def _reduce(draft: Draft, root: int, dst: Space) -> int:
    """Reduce IN up the tree; partial sums are kept in ``dst``. Returns the last step of this rank."""
    parent, children = _relatives(draft.rank, draft.size, root)
    src, ready = Space.IN, ()  # type: tuple[Space, tuple[int, ...]]
    last = -1
    for child in children:
        last = draft.recv_reduce(child, 0, src, dst, after=ready)
        src, ready = dst, (last,)
    if parent is not None:
        last = draft.send(parent, 0, src, after=ready)
    return last


def broadcast(rank: int, size: int, root: int) -> Plan:
    """Every rank that has the data sends it on: log2(n) rounds."""
    draft = Draft("broadcast", "binomial", rank, size, 1)
    ready = (draft.copy(0, Space.IN, Space.OUT),) if rank == root else ()
    _broadcast(draft, root, ready)
    return draft.plan()


def reduce(rank: int, size: int, root: int) -> Plan:
    """Partial sums flow to the root in log2(n) rounds; only the root has an OUT."""
    draft = Draft("reduce", "binomial", rank, size, 1)
    last = _reduce(draft, root, Space.OUT if rank == root else Space.TMP)
    if rank == root:
        draft.finish(0, Space.OUT, after=(last,))
    return draft.plan()


def all_reduce(rank: int, size: int) -> Plan:
    """Reduce to rank 0 and broadcast from it: 2 log2(n) rounds, and each rank talks to log2(n) at most."""
    draft = Draft("all_reduce", "tree", rank, size, 1)
    last = _reduce(draft, 0, Space.OUT)
    ready = (draft.finish(0, Space.OUT, after=(last,)),) if rank == 0 else ()
    _broadcast(draft, 0, ready)
    return draft.plan()
