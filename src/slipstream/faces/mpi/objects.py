"""Python objects between the ranks of a group, pickled. None is read before its sender has proved to be of the job."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.comm.collectives import arrays
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.membership.group import Group
from slipstream.comm.rendezvous.authentication import TAG_SIZE, Authenticator, next_authenticator

__all__ = ["all_gathered", "broadcast"]

_SIZE_BYTES = 8
_Bytes = NDArray[np.uint8]


def _tagged(auth: Authenticator, part: str, sender: int, data: bytes) -> _Bytes:
    return np.frombuffer(bytearray(data + auth.tag(part, sender, data)), dtype=np.uint8)


def _checked(auth: Authenticator, part: str, sender: int, received: _Bytes) -> bytes:
    raw = received.tobytes()
    auth.check(part, sender, raw[:-TAG_SIZE], raw[-TAG_SIZE:])
    return raw[:-TAG_SIZE]


def _size_of(data: _Bytes) -> bytes:
    return data.size.to_bytes(_SIZE_BYTES, "little")


def all_gathered(group: Group, operation: str, mine: Any) -> list[Any]:
    """The objects of all ranks, in order of rank. Raises what the engine raises, and pickle's errors."""
    pickled = pickle.dumps(mine, pickle.HIGHEST_PROTOCOL)
    auth = next_authenticator(group, operation)
    rank = group.ranks[group.rank]
    data = _tagged(auth, "object", rank, pickled)
    with Together(group, operation):
        announced = np.split(
            arrays.all_gather(_tagged(auth, "size", rank, _size_of(data)), group=group), group.size
        )
        sizes = [
            int.from_bytes(_checked(auth, "size", sender, one), "little")
            for sender, one in zip(group.ranks, announced, strict=True)
        ]
        parts = np.split(arrays.all_gather(data, group=group), np.cumsum(sizes)[:-1])
    return [
        pickle.loads(_checked(auth, "object", sender, one))
        for sender, one in zip(group.ranks, parts, strict=True)
    ]


def broadcast(group: Group, operation: str, mine: Any, root: int) -> Any:
    """The root's object, on all ranks. Raises as `all_gathered` does."""
    is_root, sender = group.rank == root, group.ranks[root]
    pickled = pickle.dumps(mine, pickle.HIGHEST_PROTOCOL) if is_root else b""
    auth = next_authenticator(group, operation)
    size, data = np.empty(_SIZE_BYTES + TAG_SIZE, np.uint8), np.empty(0, np.uint8)
    if is_root:
        data = _tagged(auth, "object", sender, pickled)
        size = _tagged(auth, "size", sender, _size_of(data))
    with Together(group, operation):
        arrays.broadcast(size, root, out=size, group=group)
        if not is_root:
            data = np.empty(int.from_bytes(_checked(auth, "size", sender, size), "little"), np.uint8)
        arrays.broadcast(data, root, out=data, group=group)
    return mine if is_root else pickle.loads(_checked(auth, "object", sender, data))
