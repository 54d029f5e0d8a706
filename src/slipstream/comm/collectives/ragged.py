"""Blocks that travel with their sizes, for operations in which a rank does not know what the others bring.

Every rank sends a head to every rank: some integers, as many on all ranks. If all blocks that a rank sends are short,
each follows its head in the same message. If one is long, none of this rank does, and the heads say so. So a short
operation takes one round of messages, and the heads tell what a long one needs to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slipstream import _core
from slipstream.base.dtypes import DType
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.copies_back import await_memory
from slipstream.comm.collectives.rows import FIELDS
from slipstream.comm.collectives.signatures import detailed
from slipstream.comm.membership.group import Group

__all__ = ["Told", "fits", "tell_all", "tell_each", "unpacked"]

_MOST_RANKS = 16  # that send to each other at once; more gather the heads alone, in fewer messages
_MOST_BYTES = 16 << 10  # of a message that the engine sends without asking
_MEMORY = 64 << 10  # bytes of the messages of all ranks
_INTEGER = 8  # bytes
# How operations that need no Python tell each other of their arrays, and by how many integers (`QuickEntry`).
_QUICK = {
    "all_gather": ("all_gather", FIELDS),
    "all_to_all": ("all_to_all", FIELDS),
    "gather": ("all_to_all", FIELDS),
    "scatter": ("all_gather", 2 * FIELDS),
}


class Told(NamedTuple):
    """What all ranks told this one.

    ``heads``: in order of rank. ``blocks``: those for this rank; None if a rank's were long.
    """

    heads: list[list[int]]
    blocks: _core.Told | None


def fits(group: Group, operation: str, fields: int, address: int, nbytes: int, most: int) -> bool:
    """Whether blocks of at most ``most`` bytes each may follow heads of ``fields`` integers.

    They lie in ``nbytes`` bytes at ``address``. If they may, waits until no earlier operation writes there.
    """
    if group.size > _MOST_RANKS or most > _room(group) - _INTEGER * (fields + 1):
        return False
    await_memory(group, operation, address, nbytes, writes=False)
    return True


def tell_all(
    group: Group,
    operation: str,
    head: Sequence[int],
    block: int,
    size: int,
    whole: bool,
    name: str | None,
    root: int = -1,
) -> Told:
    """Tells every rank of the group the same head and block, and waits until they have told theirs.

    ``block``: an address; ``size``: bytes there; ``whole``: what `fits` said. ``operation``, ``name``: what errors and
    the timeline call it. ``root``: of an operation that has one; the ranks compare it. Raises the session's error if
    it has failed.
    """
    if group.size > _MOST_RANKS:
        return _heads_of_all(group, head, name)
    request = _request(group, operation, "all_gather", "direct", len(head), root)
    return unpacked(group.session.tell(request, head, block, (size,), whole, name or ""))


def tell_each(
    group: Group,
    operation: str,
    heads: Sequence[Sequence[int]],
    blocks: int,
    sizes: Sequence[int],
    whole: bool,
    name: str | None,
    root: int = -1,
) -> Told:
    """As `tell_all`, but each rank of the group is told a head and a block of its own; the blocks follow each other."""
    if group.size > _MOST_RANKS:
        return _heads_of_each(group, heads, name)
    request = _request(group, operation, "all_to_all", "pairwise", len(heads[0]), root)
    fields = [field for head in heads for field in head]
    return unpacked(group.session.tell(request, fields, blocks, sizes, whole, name or ""))


def unpacked(told: _core.Told) -> Told:
    """What `Session.tell` has given."""
    return Told(told.heads(), told if told.whole else None)


def _room(group: Group) -> int:
    """Bytes of the longest message."""
    return min(_MOST_BYTES, _MEMORY // group.size)


def _request(
    group: Group, operation: str, collective: str, algorithm: str, fields: int, root: int
) -> _core.Request:
    room = _room(group)
    compiled = group.ragged(collective, algorithm, room)
    key = (operation, fields, root)
    found = compiled.requests.get(key)
    if found is None:
        found = compiled.requests[key] = _core.Request(
            group=group.native,
            plan=compiled.native,
            operation=detailed(f"{operation}/with_sizes", ranks=group.unsorted),
            dtype=DType.U8,
            chunk_bytes=compiled.chunk_bytes,
            root=root,
            out_offsets=range(0, (group.size + 1) * room, room),
            extra=fields,
            ragged=True,
        )
        if _QUICK.get(operation) == (collective, fields):
            group.quick.add(operation, 0, 0, max(root, 0), found)
    return found


def _heads_of_all(group: Group, head: Sequence[int], name: str | None) -> Told:
    mine = np.array(head, dtype=np.int64)
    everyone = np.empty((group.size, mine.size), dtype=np.int64)
    memory = mine.ctypes.data, everyone.ctypes.data
    counts = [mine.size] * group.size
    addresses.all_gather(group, *memory, counts, DType.I64, name=name, keep=(mine, everyone), sync=True)
    return Told(everyone.tolist(), None)


def _heads_of_each(group: Group, heads: Sequence[Sequence[int]], name: str | None) -> Told:
    mine = np.array(heads, dtype=np.int64)
    theirs = np.empty_like(mine)
    counts = [mine.shape[1]] * group.size
    memory = mine.ctypes.data, theirs.ctypes.data
    addresses.all_to_all(group, *memory, counts, counts, DType.I64, name=name, keep=(mine, theirs), sync=True)
    return Told(theirs.tolist(), None)
