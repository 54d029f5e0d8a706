"""Any Python objects between ranks: pickled, as one message of bytes after one with its size.

Unpickling runs code the sender chose. So both messages carry a tag that only a rank of this job can make, for this
operation alone (`slipstream.comm.rendezvous.authentication`), and nothing is unpickled before the tag has been checked.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.comm.collectives import arrays
from slipstream.comm.collectives.interruption import Together, whole
from slipstream.comm.membership.group import Group, world
from slipstream.comm.negotiation.agreement import EVERYONE, Request
from slipstream.comm.negotiation.negotiated import DONE
from slipstream.comm.rendezvous.authentication import TAG_SIZE, Authenticator, next_authenticator
from slipstream.faces.horovod.handles import PendingResult, start
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object"]

_SIZE_BYTES = 8

Bytes = NDArray[np.uint8]


def _to_bytes(obj: Any) -> bytes:
    return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)


def _tagged(auth: Authenticator, part: str, sender: int, data: bytes) -> Bytes:
    return np.frombuffer(bytearray(data + auth.tag(part, sender, data)), dtype=np.uint8)


def _tagged_size(auth: Authenticator, sender: int, data: Bytes) -> Bytes:
    return _tagged(auth, "size", sender, data.size.to_bytes(_SIZE_BYTES, "little"))


def _checked(auth: Authenticator, part: str, sender: int, received: Bytes) -> bytes:
    """What was sent, without its tag; SlipstreamError if it is not what ``sender`` sent."""
    raw = received.tobytes()
    data, tag = raw[:-TAG_SIZE], raw[-TAG_SIZE:]
    auth.check(part, sender, data, tag)
    return data


def _checked_size(auth: Authenticator, sender: int, received: Bytes) -> int:
    return int.from_bytes(_checked(auth, "size", sender, received), "little")


@whole(lambda *_, **__: world())
def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object that ``root_rank`` (its number in the job) gave, on every rank; itself on the root.

    ``name``: as for tensors. Raises pickle's errors when the object cannot be pickled, Mismatch if the ranks give
    different roots, or one has joined, and SlipstreamError when the bytes that came are not those that the root sent:
    then nothing is unpickled.

    >>> hvd.broadcast_object({"epoch": hvd.rank()}, root_rank=1)
    {'epoch': 1}
    """
    group = process_set.group
    if root_rank not in group.ranks:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks {list(group.ranks)}")
    root = list(group.ranks).index(root_rank)
    is_root = group.rank == root
    pickled = _to_bytes(obj) if is_root else b""
    received = start(
        name,
        process_set,
        lambda text: Request(
            "broadcast_object",
            text,
            f"from rank {root_rank}",
            needs=EVERYONE,
            labels="broadcast_object root ranks",
        ),
        lambda used: PendingResult(DONE, _broadcast(used.group, pickled, root)),
        sync=True,
    ).wait()
    return obj if is_root else pickle.loads(received)


def _broadcast(group: Group, pickled: bytes, root: int) -> bytes:
    """What the root has pickled."""
    is_root, root_rank = group.rank == root, group.ranks[root]
    auth = next_authenticator(group, "broadcast_object")
    if is_root:
        data = _tagged(auth, "object", root_rank, pickled)
        size = _tagged_size(auth, root_rank, data)
    else:
        size = np.empty(_SIZE_BYTES + TAG_SIZE, dtype=np.uint8)
    with Together(group, "broadcast_object"):
        arrays.broadcast(size, root, out=size, group=group)
        if not is_root:
            data = np.empty(_checked_size(auth, root_rank, size), dtype=np.uint8)
        arrays.broadcast(data, root, out=data, group=group)
    return pickled if is_root else _checked(auth, "object", root_rank, data)


@whole(lambda *_, **__: world())
def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks, in rank order. ``name``: as for tensors. Raises as `broadcast_object` does.

    >>> hvd.allgather_object({"rank": hvd.rank()})
    [{'rank': 0}, {'rank': 1}]
    """
    pickled = _to_bytes(obj)
    received = start(
        name,
        process_set,
        lambda text: Request("allgather_object", text, "", needs=EVERYONE),
        lambda used: PendingResult(DONE, _all_gather(used.group, pickled)),
        sync=True,
    ).wait()
    return [pickle.loads(one) for one in received]


def _all_gather(group: Group, pickled: bytes) -> list[bytes]:
    """What all ranks have pickled."""
    auth = next_authenticator(group, "allgather_object")
    rank = group.ranks[group.rank]
    data = _tagged(auth, "object", rank, pickled)
    with Together(group, "allgather_object"):
        announced = arrays.all_gather(_tagged_size(auth, rank, data), group=group)
        sizes = [
            _checked_size(auth, sender, one)
            for sender, one in zip(group.ranks, np.split(announced, group.size), strict=True)
        ]
        parts = np.split(arrays.all_gather(data, group=group), np.cumsum(sizes)[:-1])
    return [_checked(auth, "object", sender, one) for sender, one in zip(group.ranks, parts, strict=True)]
