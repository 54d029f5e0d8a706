"""All-gather in log2(n) rounds (Bruck et al. 1997): for small blocks of many ranks.

After round k a rank has the blocks of the 2^k ranks from itself on, counted around. Blocks stay where they belong in
OUT, so nothing is rotated at the end; what wraps around is two messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.plan.steps import Draft, Plan, Space

__all__ = ["all_gather"]


def _ranges(first: int, count: int, size: int) -> Iterator[tuple[int, int]]:
    """``count`` blocks from ``first`` on, counted around, as (first block, count) of what lies side by side."""
    first %= size
    if first + count <= size:
        yield first, count
    else:
        yield first, size - first
        yield 0, first + count - size


def all_gather(rank: int, size: int) -> Plan:
    """Each round doubles what a rank has: as many bytes as with a ring, in at most 2 log2(n) messages."""
    draft = Draft("all_gather", "bruck", rank, size, size)
    have = [
        (rank, 1, draft.copy(rank, Space.IN, Space.OUT))
    ]  # (first block, count, the step that brings them)
    reach = 1
    while reach < size:
        count = min(reach, size - reach)
        to, source = (rank - reach) % size, (rank + reach) % size
        for block, blocks in _ranges(rank, count, size):
            after = [step for first, n, step in have if first < block + blocks and block < first + n]
            draft.send(to, block, Space.OUT, count=blocks, after=after)
        have += [
            (block, blocks, draft.recv(source, block, Space.OUT, count=blocks))
            for block, blocks in _ranges(rank + reach, count, size)
        ]
        reach *= 2
    return draft.plan()
