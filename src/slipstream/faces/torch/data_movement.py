"""All-gather, broadcast and all-to-all, started asynchronously, on `slipstream.comm.collectives.addresses`.

Where ranks may bring different numbers of rows, they tell each other how many, together with all that must
be equal, so that a disagreement is an error on every rank and never garbage. Short rows travel in the same
message (`slipstream.comm.collectives.ragged`), longer ones in a second operation.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch

from slipstream import _core
from slipstream.base.dtypes import DType
from slipstream.base.errors import Mismatch
from slipstream.comm.collectives import addresses, ragged
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.collectives.work import Work
from slipstream.faces.horovod.handles import Grouped, PendingResult
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.torch.reduction_collectives import copied, placed
from slipstream.faces.torch_tensors import (
    await_tensor,
    check_dense,
    copy_back,
    dtype_code,
    is_plain,
    new_tensor,
    plain_copy,
    write_back,
)

__all__ = [
    "check_splits",
    "number_of_root",
    "start_all_gather",
    "start_all_to_all",
    "start_broadcast",
    "start_grouped_all_gather",
]

_I64 = int(DType.I64)
# dtype, number of dimensions, the first dimensions after dim 0, a checksum of all of them; then the rows
_SHOWN = 6
_FIELDS = _SHOWN + 3


def _passport(tensor: torch.Tensor) -> list[int]:
    tail = list(tensor.shape[1:])
    shown = [*tail, *([-1] * _SHOWN)][:_SHOWN]
    return [dtype_code(tensor), max(tensor.dim(), 1), *shown, zlib.crc32(repr(tail).encode())]


def _describe(fields: Sequence[int]) -> str:
    dims = ["*", *(str(size) for size in fields[2 : 1 + min(fields[1], _SHOWN + 1)])]
    return f"dtype code {fields[0]}, shape ({', '.join(dims)})"


def _check_same(operation: str, mine: list[int], others: list[list[int]], process_set: ProcessSet) -> None:
    for number, theirs in enumerate(others):
        if theirs != mine:
            rank = process_set.group.ranks[number]
            raise Mismatch(
                f"{operation}: this rank has {_describe(mine)}, rank {rank} has {_describe(theirs)}"
            )


def _gather_numbers(numbers: list[int], process_set: ProcessSet) -> list[list[int]]:
    group = process_set.group
    source = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    target = new_tensor((group.size * len(numbers),), torch.int64)
    counts = [len(numbers)] * group.size
    memory = source.data_ptr(), target.data_ptr()
    addresses.all_gather(group, *memory, counts, _I64, keep=(source, target), sync=True)
    return target.view(group.size, len(numbers)).tolist()


def start_all_gather(tensor: torch.Tensor, label: str | None, process_set: ProcessSet) -> PendingResult:
    """Starts an all-gather along dim 0, of which ranks may bring any number of rows (a 0-dim tensor counts as
    one).

    Waits until all ranks have started it, since only then the size of the result is known.
    """
    return _all_gather([tensor], process_set, label)[0]


def start_grouped_all_gather(
    tensors: Sequence[torch.Tensor], label: str | None, process_set: ProcessSet
) -> Grouped:
    """Starts all-gathers of several tensors, with one exchange of their sizes."""
    return Grouped(_all_gather(tensors, process_set, label))


def _all_gather(
    tensors: Sequence[torch.Tensor], process_set: ProcessSet, label: str | None
) -> list[PendingResult]:
    for tensor in tensors:
        check_dense(tensor)
    with Together(process_set.group, "allgather"):
        return _all_gather_together(tensors, process_set, label)


def _all_gather_together(
    tensors: Sequence[torch.Tensor], process_set: ProcessSet, label: str | None
) -> list[PendingResult]:
    if len(tensors) == 1:
        return [_all_gather_one(tensors[0], process_set, label)]
    mine: list[list[int]] = []
    for tensor in tensors:
        mine.append([*_passport(tensor), tensor.shape[0] if tensor.dim() else 1])
    table = _gather_numbers([number for row in mine for number in row], process_set)
    pendings = []
    for index, tensor in enumerate(tensors):
        start = index * (_FIELDS + 1)
        theirs = [row[start : start + _FIELDS] for row in table]
        _check_same("allgather", mine[index][:_FIELDS], theirs, process_set)
        rows = [row[start + _FIELDS] for row in table]
        pendings.append(_all_gather_rows(tensor, rows, process_set, label))
    return pendings


def _all_gather_one(tensor: torch.Tensor, process_set: ProcessSet, label: str | None) -> PendingResult:
    group = process_set.group
    mine = _passport(tensor)
    head = [*mine, tensor.shape[0] if tensor.dim() else 1]
    plain, nbytes = is_plain(tensor), tensor.nbytes
    address = tensor.data_ptr() if plain else 0
    fits = plain and ragged.fits(group, "allgather", len(head), address, nbytes, nbytes)
    told = ragged.tell_all(group, "allgather", head, address, nbytes, fits, label)
    _check_same("allgather", mine, [row[:_FIELDS] for row in told.heads], process_set)
    rows = [row[_FIELDS] for row in told.heads]
    if told.blocks is None:
        return _all_gather_rows(tensor, rows, process_set, label)
    return _joined(tensor, rows, told.blocks)


def _joined(tensor: torch.Tensor, rows: list[int], blocks: _core.Told) -> PendingResult:
    """What came with its sizes, as a result like ``tensor`` but for the number of rows."""
    buffer = new_tensor((sum(rows), *tensor.shape[1:]), tensor.dtype)
    row_bytes = _width(tensor) * tensor.element_size()
    blocks.join(buffer.data_ptr(), [count * row_bytes for count in rows])
    return placed(Work(None), buffer, tensor.device)


def _width(tensor: torch.Tensor) -> int:
    width = 1
    for size in tensor.shape[1:]:
        width *= size
    return width


def _all_gather_rows(
    tensor: torch.Tensor, rows: list[int], process_set: ProcessSet, label: str | None
) -> PendingResult:
    width = _width(tensor)
    source = tensor if is_plain(tensor) else copied(tensor, "allgather", process_set)
    buffer = new_tensor((sum(rows), *tensor.shape[1:]), tensor.dtype)
    counts = [count * width for count in rows]
    work = addresses.all_gather(
        process_set.group,
        source.data_ptr(),
        buffer.data_ptr(),
        counts,
        dtype_code(tensor),
        name=label,
        keep=(source, buffer),
    )
    return placed(work, buffer, tensor.device)


def number_of_root(root_rank: int, process_set: ProcessSet) -> int:
    """The place in the set of a rank of the job; ValueError if it is not there."""
    ranks = list(process_set.group.ranks)
    if root_rank not in ranks:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks {ranks}")
    return ranks.index(root_rank)


def start_broadcast(
    tensor: torch.Tensor,
    in_place: bool,
    root_rank: int,
    label: str | None,
    process_set: ProcessSet,
    sync: bool = False,
) -> PendingResult:
    """Starts (with ``sync``: runs) a broadcast from ``root_rank`` (its number in the job); ValueError when
    that is not in the set. ``label``: what errors call it; the ranks compare it.
    """
    dtype = dtype_code(tensor)
    group = process_set.group
    root = number_of_root(root_rank, process_set)
    finish = None
    plain = is_plain(tensor)
    if not plain:
        await_tensor(group, "broadcast", tensor, writes=in_place)
    source = tensor if plain else plain_copy(tensor)
    if in_place:
        result, buffer = tensor, source
    else:
        buffer = new_tensor(tensor.shape, tensor.dtype)
        result = buffer if tensor.is_cpu else torch.empty_like(tensor)
    keep: tuple[object, ...] = (source, buffer)
    if result is not buffer:
        target = result

        def finish() -> None:
            write_back(target, buffer)

        if in_place:
            finish = copy_back(group, "broadcast", [tensor], finish)
            keep = finish.keeping(*keep)
    work = addresses.broadcast(
        group,
        source.data_ptr(),
        buffer.data_ptr(),
        source.numel(),
        dtype,
        root,
        name=label,
        shape=source.shape,
        keep=keep,
        sync=sync
        and (finish is None or not in_place),  # a call that is broken off leaves its copy to later ones
    )
    return PendingResult(work, result, finish)


def check_splits(tensor: torch.Tensor, splits: Any, size: int) -> list[int]:
    """How many rows each of ``size`` ranks gets; ValueError if ``splits`` does not fit the tensor."""
    if tensor.dim() == 0:
        raise ValueError("alltoall needs a tensor of at least one dimension")
    rows = tensor.shape[0]
    if splits is None:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be split equally over {size} ranks; give splits")
        return [rows // size] * size
    if isinstance(splits, torch.Tensor) and (
        splits.is_floating_point() or splits.is_complex() or splits.dim() > 1
    ):
        raise ValueError("splits must be a list or 1-d tensor of integers")
    counts = splits.tolist() if isinstance(splits, torch.Tensor) else list(splits)
    if len(counts) == 0:
        return check_splits(tensor, None, size)
    if any(isinstance(count, float) or count != int(count) or count < 0 for count in counts):
        raise ValueError(f"splits must be integers of at least 0, got {counts}")
    if len(counts) != size or sum(counts) != rows:
        raise ValueError(f"splits must be {size} numbers that add up to {rows} rows, got {counts}")
    return [int(count) for count in counts]


def start_all_to_all(
    tensor: torch.Tensor, splits: Any, label: str | None, process_set: ProcessSet, alone: bool = False
) -> Grouped:
    """Starts an all-to-all along dim 0; the result is (tensor, received splits), the latter on the CPU or
    like ``splits``. With ``alone`` it is the tensor.

    ValueError when ``splits`` does not fit the tensor. Waits until all ranks have started it.
    """
    group = process_set.group
    size = group.size
    check_dense(tensor)
    send = check_splits(tensor, splits, size)
    mine = _passport(tensor)
    with Together(group, "alltoall"):
        heads = [[*mine, count] for count in send]
        width = _width(tensor)
        sizes = [count * width * tensor.element_size() for count in send]
        plain = is_plain(tensor)
        address = tensor.data_ptr() if plain else 0
        fits = plain and ragged.fits(group, "alltoall", len(heads[0]), address, sum(sizes), max(sizes))
        told = ragged.tell_each(group, "alltoall", heads, address, sizes, fits, label)
        _check_same("alltoall", mine, [row[:_FIELDS] for row in told.heads], process_set)
        receive = [row[_FIELDS] for row in told.heads]
        if told.blocks is None:
            part = _all_to_all_rows(tensor, send, receive, process_set, label)
        else:
            part = _joined(tensor, receive, told.blocks)
    given = isinstance(splits, torch.Tensor) and splits.numel()
    like = splits if given else torch.empty(0, dtype=torch.int32, device="cpu")
    received = torch.tensor(receive, dtype=like.dtype, device=like.device)
    return Grouped([part], lambda results: results[0] if alone else (results[0], received))


def _all_to_all_rows(
    tensor: torch.Tensor, send: list[int], receive: list[int], process_set: ProcessSet, label: str | None
) -> PendingResult:
    width = _width(tensor)
    source = tensor if is_plain(tensor) else copied(tensor, "alltoall", process_set)
    buffer = new_tensor((sum(receive), *tensor.shape[1:]), tensor.dtype)
    work = addresses.all_to_all(
        process_set.group,
        source.data_ptr(),
        buffer.data_ptr(),
        [count * width for count in send],
        [count * width for count in receive],
        dtype_code(tensor),
        name=label,
        keep=(source, buffer),
    )
    return placed(work, buffer, tensor.device)
