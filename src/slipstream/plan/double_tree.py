"""Two binary trees, each of which carries half of the data: log2(n) rounds, and yet each port only carries it once.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009). Whoever passes
data on in one tree has nothing to pass on in the other, so no port sends more than the whole. For large data over many
hosts, where a chain takes long to fill. One rank of each host is in the trees; from it a chain goes through the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.plan.steps import Draft, Plan, Space
from slipstream.plan.topology import members_of_hosts

__all__ = ["broadcast", "depth", "reduce"]


class _Place(NamedTuple):
    """Whom a rank gets one half of a broadcast from (None for the root), and whom it sends that half to."""

    parent: int | None
    children: list[int]


def _above(x: int, count: int) -> int:
    """The parent of place ``x`` in the tree of places 1 to ``count``, in which odd places are leaves; 0 for the top."""
    bit = x & -x
    up = (x ^ bit) | (bit << 1)
    return up if up <= count else x ^ bit


def _role(x: int, count: int, tree: int) -> int:
    """The place that member ``x`` of 1 to ``count`` has in a tree: in the second one, leaves of the first are inner."""
    if tree == 0:
        return x
    if count % 2 == 0:
        return count + 1 - x
    return x - 1 if x > 1 else count


def depth(hosts: int) -> int:
    """How many messages stand between the root and the last of so many hosts."""
    return (hosts - 1).bit_length()


def _places(rank: int, size: int, root: int, hosts: Sequence[int] | None) -> list[_Place]:
    """What ``rank`` does in each of both trees."""
    groups = members_of_hosts(size, hosts if hosts is not None else range(size))
    start = next(i for i, members in enumerate(groups) if root in members)
    groups = groups[start:] + groups[:start]
    groups[0] = [root, *(member for member in groups[0] if member != root)]
    host = next(i for i, members in enumerate(groups) if rank in members)
    at = groups[host].index(rank)
    local = groups[host][at + 1 : at + 2]
    if at:
        return [_Place(groups[host][at - 1], local)] * 2
    count = len(groups) - 1
    places = []
    for tree in (0, 1):
        member = {_role(x, count, tree): x for x in range(1, count + 1)}
        above = {x: _above(x, count) for x in range(1, count + 1)}
        role = _role(host, count, tree) if host else 0
        children = [groups[member[x]][0] for x in range(1, count + 1) if above[x] == role]
        parent = None
        if host:
            parent = groups[member[above[role]]][0] if above[role] else root
        places.append(_Place(parent, children + local))
    return places


def broadcast(rank: int, size: int, root: int, hosts: Sequence[int] | None) -> Plan:
    """Each half of the data goes down a tree of its own."""
    draft = Draft("broadcast", "double_tree", rank, size, 2)
    places = _places(rank, size, root, hosts)
    ready = [
        draft.copy(half, Space.IN, Space.OUT)
        if place.parent is None
        else draft.recv(place.parent, half, Space.OUT)
        for half, place in enumerate(places)
    ]
    for half, place in enumerate(places):
        for child in place.children:
            draft.send(child, half, Space.OUT, after=(ready[half],))
    return draft.plan()


def reduce(rank: int, size: int, root: int, hosts: Sequence[int] | None) -> Plan:
    """The broadcast backwards: each half of the sums flows up a tree of its own."""
    draft = Draft("reduce", "double_tree", rank, size, 2)
    dst = Space.OUT if rank == root else Space.TMP  # only the root's OUT exists
    for half, place in enumerate(_places(rank, size, root, hosts)):
        src, ready = Space.IN, ()  # type: tuple[Space, tuple[int, ...]]
        for child in place.children:
            ready = (draft.recv_reduce(child, half, src, dst, after=ready),)
            src = dst
        if place.parent is not None:
            draft.send(place.parent, half, src, after=ready)
        else:
            draft.finish(half, dst, after=ready)
    return draft.plan()
