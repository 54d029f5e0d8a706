"""Any Python objects between ranks: pickled, as one message of bytes after one with its size.

Unpickling runs code the sender chose. The bytes come over links whose ends have proved knowledge of the job's
secret, so the sender is a rank of this job and none other.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from slipstream.faces.torch.exchanges import start_all_gather, start_broadcast
from slipstream.faces.torch.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object"]


def _to_bytes(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)), dtype=torch.uint8)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object that ``root_rank`` (its number in the job) gave, on every rank; itself on the root.

    ``name`` is accepted for Horovod's sake. Raises pickle's errors when the object cannot be pickled.
    """
    group = process_set.group
    is_root = group.ranks[group.rank] == root_rank
    data = _to_bytes(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor([data.numel()])
    start_broadcast(size, True, root_rank, None, process_set, sync=True).wait()
    if not is_root:
        data = torch.empty(int(size), dtype=torch.uint8)
    start_broadcast(data, True, root_rank, None, process_set, sync=True).wait()
    return obj if is_root else pickle.loads(data.numpy().tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks, in rank order. ``name`` is accepted for Horovod's sake."""
    data = _to_bytes(obj)
    sizes = start_all_gather(torch.tensor([data.numel()]), None, process_set).wait().tolist()
    gathered = start_all_gather(data, None, process_set).wait()
    return [pickle.loads(part.numpy().tobytes()) for part in gathered.split(sizes)]
