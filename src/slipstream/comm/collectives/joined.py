"""Results that are put together from what all ranks have told each other of their blocks (`ragged`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream._core import address_of
from slipstream.base.dtypes import from_numpy
from slipstream.comm.collectives import addresses, ragged
from slipstream.comm.collectives.buffers import Buffer, writable
from slipstream.comm.collectives.copies_back import await_memory
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.collectives.overlaps import check_gather, check_scatter
from slipstream.comm.collectives.rows import check_rows, check_source
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group, world

__all__ = [
    "collect_told",
    "collect_unusual",
    "divide_told",
    "divide_unusual",
    "exchange_told",
    "exchange_unusual",
    "gather_told",
    "gather_unusual",
    "join_told",
]


def gather_told(
    group: Group,
    told: ragged.Told,
    array: NDArray[Any],
    dtype: int,
    width: int,
    out: Buffer | None,
    *,
    name: str | None = None,
    wire: str | None = None,
    sync: bool = True,
) -> tuple[Work, NDArray[Any]]:
    """The rest of an all_gather once all ranks have told their rows of ``width`` elements: its work, the result."""
    counts = check_rows("all_gather", told.heads)
    shape = (sum(counts), *array.shape[1:])
    result = np.empty(shape, dtype=array.dtype) if out is None else writable(out, shape, array)
    elements = [n * width for n in counts]
    memory = address_of(array), address_of(result)
    if told.blocks is None:
        keep = (array, result)
        work = addresses.all_gather(
            group, *memory, elements, dtype, name=name, wire=wire, keep=keep, sync=sync
        )
        return work, result
    check_gather("all_gather", group, *memory, elements, dtype)
    join_told(group, "all_gather", told.blocks, elements, result, out is not None)
    return Work(None), result


def gather_unusual(
    group: Group | None, x: NDArray[Any], out: NDArray[Any] | None, told: _core.Told
) -> NDArray[Any]:
    """The rest of an all_gather that `QuickEntry` began, if a block is long, or some rank's array does not fit."""
    group = world() if group is None else group
    with Together(group, "all_gather", before=1):
        return gather_told(group, ragged.unpacked(told), x, from_numpy(x.dtype), 1, out)[1]


def exchange_told(
    group: Group,
    told: ragged.Told,
    array: NDArray[Any],
    dtype: int,
    width: int,
    splits: Sequence[int],
    out: Buffer | None,
    *,
    name: str | None = None,
    wire: str | None = None,
    sync: bool = True,
) -> tuple[Work, NDArray[Any]]:
    """The rest of an all_to_all once all ranks have told their rows for this one: its work, the result.

    ``splits``: rows of ``width`` elements that go to each rank.
    """
    counts = check_rows("all_to_all", told.heads)
    shape = (sum(counts), *array.shape[1:])
    result = np.empty(shape, dtype=array.dtype) if out is None else writable(out, shape, array)
    received = [n * width for n in counts]
    if told.blocks is not None:
        join_told(group, "all_to_all", told.blocks, received, result, out is not None)
        return Work(None), result
    if np.may_share_memory(array, result):
        array = array.copy()
    work = addresses.all_to_all(
        group,
        address_of(array),
        address_of(result),
        [int(n) * width for n in splits],
        received,
        dtype,
        name=name,
        wire=wire,
        keep=(array, result),
        sync=sync,
    )
    return work, result


def exchange_unusual(
    group: Group | None, x: NDArray[Any], out: NDArray[Any] | None, told: _core.Told
) -> NDArray[Any]:
    """The rest of an all_to_all that `QuickEntry` began, if what the ranks have told is unusual, or new."""
    group = world() if group is None else group
    splits = [x.size // group.size] * group.size
    with Together(group, "all_to_all", before=1):
        return exchange_told(group, ragged.unpacked(told), x, from_numpy(x.dtype), 1, splits, out)[1]


def collect_told(
    group: Group,
    told: ragged.Told,
    array: NDArray[Any],
    dtype: int,
    width: int,
    root: int,
    out: Buffer | None,
    *,
    name: str | None = None,
    sync: bool = True,
) -> tuple[Work, NDArray[Any] | None]:
    """The rest of a gather once all ranks have told their rows of ``width`` elements: its work, the root's result."""
    counts = check_rows("gather", told.heads)
    mine = group.rank == root
    shape = (sum(counts) if mine else 0, *array.shape[1:])
    given = out is not None and mine
    result = writable(out, shape, array) if given else np.empty(shape, dtype=array.dtype)
    elements = [n * width for n in counts]
    memory = address_of(array), address_of(result)
    work = Work(None)
    if told.blocks is None:
        keep = (array, result)
        work = addresses.gather(group, *memory, elements, dtype, root, name=name, keep=keep, sync=sync)
    elif mine:
        check_gather("gather", group, *memory, elements, dtype)
        join_told(group, "gather", told.blocks, elements, result, given)
    return work, result if mine else None


def collect_unusual(
    group: Group | None, x: NDArray[Any], out: NDArray[Any] | None, told: _core.Told, root: int
) -> NDArray[Any] | None:
    """The rest of a gather that `QuickEntry` began, if what the ranks have told is unusual, or new."""
    group = world() if group is None else group
    with Together(group, "gather", before=1):
        return collect_told(group, ragged.unpacked(told), x, from_numpy(x.dtype), 1, root, out)[1]


def divide_told(
    group: Group,
    told: ragged.Told,
    source: NDArray[Any],
    result: NDArray[Any],
    dtype: int,
    width: int,
    root: int,
    *,
    name: str | None = None,
    sync: bool = True,
) -> Work:
    """The rest of a scatter once all ranks have told what their ``result`` has space for: its work.

    ``source``: on the root, all rows of ``width`` elements; elsewhere any array.
    """
    counts = check_rows("scatter", told.heads)
    check_source(told.heads, root, sum(counts))
    elements = [n * width for n in counts]
    memory = address_of(source), address_of(result)
    if told.blocks is None:
        keep = (source, result)
        return addresses.scatter(group, *memory, elements, dtype, root, name=name, keep=keep, sync=sync)
    if group.rank == root:
        check_scatter(group, *memory, elements, dtype)
    await_memory(group, "scatter", address_of(result), result.nbytes, writes=True)
    begin = sum(elements[: group.rank]) * result.itemsize
    told.blocks.part(root, begin, result.nbytes, address_of(result))
    return Work(None)


def divide_unusual(
    group: Group | None, x: NDArray[Any], out: NDArray[Any], told: _core.Told, root: int
) -> NDArray[Any]:
    """The rest of a scatter that `QuickEntry` began, if what the ranks have told is unusual, or new."""
    group = world() if group is None else group
    source = x if group.rank == root else out
    with Together(group, "scatter", before=1):
        divide_told(group, ragged.unpacked(told), source, out, from_numpy(out.dtype), 1, root)
    return out


def join_told(
    group: Group, operation: str, blocks: _core.Told, counts: Sequence[int], result: NDArray[Any], given: bool
) -> None:
    """Puts ``counts`` elements of each rank's block into ``result``. ``given``: that is the caller's memory."""
    if given:
        await_memory(group, operation, address_of(result), result.nbytes, writes=True)
    blocks.join(address_of(result), [n * result.itemsize for n in counts])
