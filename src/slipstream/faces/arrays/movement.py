"""All-gather, broadcast and all-to-all of arrays, as they start when all ranks have called them.

Where ranks may bring different numbers of rows, they tell each other how many, together with all that must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from slipstream._core import address_of
from slipstream.comm.collectives import addresses, ragged
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.collectives.joined import gather_told, join_told
from slipstream.comm.collectives.rows import FIELDS, check_rows, head_of
from slipstream.comm.collectives.work import DONE
from slipstream.faces.arrays.operands import Array, code_of, new_array
from slipstream.faces.horovod.handles import Grouped, PendingResult
from slipstream.faces.horovod.process_sets import ProcessSet

__all__ = [
    "check_splits",
    "number_of_root",
    "start_all_gather",
    "start_all_to_all",
    "start_broadcast",
    "start_grouped_all_gather",
]


def start_all_gather(array: Array, label: str | None, process_set: ProcessSet) -> PendingResult:
    """Starts an all-gather along dim 0, of which ranks may bring any number of rows (a 0-dim array is one).

    Waits until all ranks have started it, since only then the size of the result is known.
    """
    group, code = process_set.group, code_of(array)
    head = head_of(array, code)
    with Together(group, "allgather"):
        fits = ragged.fits(group, "all_gather", FIELDS, address_of(array), array.nbytes, array.nbytes)
        told = ragged.tell_all(group, "all_gather", head, address_of(array), array.nbytes, fits, label)
        out = new_array((sum(check_rows("allgather", told.heads)), *array.shape[1:]), array.dtype)
        work, result = gather_told(group, told, array, code, head[1], out, name=label, sync=False)
    return PendingResult(work, result)


def start_grouped_all_gather(arrays: Sequence[Array], label: str | None, process_set: ProcessSet) -> Grouped:
    """Starts all-gathers of several arrays; the result is the list of theirs."""
    with Together(process_set.group, "allgather"):
        return Grouped([start_all_gather(one, label, process_set) for one in arrays])


def number_of_root(root_rank: int, process_set: ProcessSet) -> int:
    """The place in the set of a rank of the job; ValueError if it is not there."""
    ranks = list(process_set.group.ranks)
    if root_rank not in ranks:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks {ranks}")
    return ranks.index(root_rank)


def start_broadcast(
    arrays: Sequence[Array],
    root_rank: int,
    label: str | None,
    process_set: ProcessSet,
    outs: Sequence[Array] | None = None,
) -> Grouped:
    """Starts broadcasts from ``root_rank`` (its number in the job); the result is a list of new arrays, or ``outs``."""
    root, group = number_of_root(root_rank, process_set), process_set.group
    parts = []
    with Together(group, "broadcast"):
        for number, one in enumerate(arrays):
            result = new_array(one.shape, one.dtype) if outs is None else outs[number]
            memory = address_of(one), address_of(result)
            work = addresses.broadcast(
                group, *memory, one.size, code_of(one), root, name=label, shape=one.shape, keep=(one, result)
            )
            parts.append(PendingResult(work, result))
    return Grouped(parts)


def check_splits(array: Array, splits: Sequence[int] | None, size: int) -> list[int]:
    """How many rows each of ``size`` ranks gets; ValueError if ``splits`` does not fit the array."""
    if array.ndim == 0:
        raise ValueError("alltoall needs a tensor of at least one dimension")
    rows = array.shape[0]
    if splits is None or len(splits) == 0:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be split equally over {size} ranks; give splits")
        return [rows // size] * size
    counts = [int(one) for one in splits]
    if len(counts) != size or sum(counts) != rows or min(counts) < 0:
        raise ValueError(f"splits must be {size} numbers that add up to {rows} rows, got {counts}")
    return counts


def start_all_to_all(
    array: Array, splits: Sequence[int] | None, label: str | None, process_set: ProcessSet
) -> Grouped:
    """Starts an all-to-all along dim 0; the result is the array, and how many rows came from each rank.

    Waits until all ranks have started it.
    """
    group, code = process_set.group, code_of(array)
    send = check_splits(array, splits, group.size)
    kind = head_of(array, code)[1:]
    width = prod(array.shape[1:])
    with Together(group, "alltoall"):
        sizes = [count * width * array.itemsize for count in send]
        heads = [(count, *kind) for count in send]
        address = address_of(array)
        fits = ragged.fits(group, "all_to_all", FIELDS, address, array.nbytes, max(sizes))
        told = ragged.tell_each(group, "all_to_all", heads, address, sizes, fits, label)
        receive = check_rows("alltoall", told.heads)
        result = new_array((sum(receive), *array.shape[1:]), array.dtype)
        received = [count * width for count in receive]
        work: Any = DONE
        if told.blocks is None:
            sent = [count * width for count in send]
            memory = address, address_of(result)
            keep = array, result
            work = addresses.all_to_all(group, *memory, sent, received, code, name=label, keep=keep)
        else:
            join_told(group, "all_to_all", told.blocks, received, result, False)
    return Grouped([PendingResult(work, result)], lambda results: (results[0], receive))
