"""All-reduce along two binary trees at once, each for half of the data: few rounds, and bytes as few as with rings.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009). In one tree
alone leaves would have nothing to send while data comes down. Here no rank is an inner node of both trees.

Nodes of a tree are numbered from 1 in order, so that all to the left of a node are lower: odd nodes are leaves, and a
node whose lowest set bit is 2^h has subtrees of the levels below h. The second tree is the first, turned by one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.plan.steps import Draft, Plan, Space
from slipstream.plan.topology import by_host

__all__ = ["all_reduce"]


class _Place(NamedTuple):
    """Whom a rank talks to in one tree; its ``children`` are deepest subtree first, and it is a leaf without."""

    parent: int | None
    children: list[int]


def _parent(node: int, size: int) -> int | None:
    """Return the nearest node above that exists; None for the root, the largest power of two."""
    level = node & -node
    while 2 * level <= size:
        node = (node - level) | (2 * level)
        level *= 2
        if node <= size:
            return node
    return None


def _children(node: int, size: int) -> list[int]:
    half = (node & -node) // 2
    if half == 0:
        return []
    left, right = node - half, node + half
    # Where the root of the right subtree does not exist, its left child stands in for it, and so on.
    while right > size and half > 1:
        half //= 2
        right = node + half
    return [left] if right > size else [left, right]


def _place(rank: int, ranks: Sequence[int]) -> _Place:
    """``ranks``: which rank each node is."""
    node = ranks.index(rank) + 1
    parent = _parent(node, len(ranks))
    children = [ranks[child - 1] for child in _children(node, len(ranks))]
    return _Place(None if parent is None else ranks[parent - 1], children)


def _reduce(draft: Draft, half: int, place: _Place) -> tuple[int, ...]:
    """Reduce up a tree, and finish at its root. Returns the steps that the root's broadcast waits for."""
    src, ready = Space.IN, ()  # type: tuple[Space, tuple[int, ...]]
    for child in reversed(place.children):
        ready = (draft.recv_reduce(child, half, src, Space.OUT, after=ready),)
        src = Space.OUT
    if place.parent is None:
        return (draft.finish(half, Space.OUT, after=ready),)
    draft.send(place.parent, half, src, after=ready)
    return ()


def _broadcast(draft: Draft, half: int, place: _Place, ready: tuple[int, ...]) -> None:
    if place.parent is not None:
        ready = (draft.recv(place.parent, half, Space.OUT),)
    for child in place.children:
        draft.send(child, half, Space.OUT, after=ready)


def all_reduce(rank: int, size: int, hosts: Sequence[int] | None) -> Plan:
    """2 log2(n) rounds at most, each rank talks to four at most, and sends at most twice its data.

    An inner node sends a half up and two down, and as a leaf of the other tree one up.
    """
    draft = Draft("all_reduce", "double_tree", rank, size, 2)
    ranks = by_host(size, hosts)
    places = [_place(rank, ranks), _place(rank, ranks[1:] + ranks[:1])]
    # All ranks go up both trees first: two that meet in both trees then agree on the order of their messages.
    ready = [_reduce(draft, half, place) for half, place in enumerate(places)]
    for half, place in enumerate(places):
        _broadcast(draft, half, place, ready[half])
    return draft.plan()
