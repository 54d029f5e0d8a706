"""Collectives on arrays: NumPy, any buffer, DLPack.

Each takes ``group`` (default: all ranks), ``async_op`` (return a `Work` at once; its ``wait`` gives the
result) and ``name``. All members of a group call the same operations in the same order. ``out`` may be the
input itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.base.dtypes import DType, Op, as_op
from slipstream.comm import raw
from slipstream.comm.arrays import Buffer, contiguous, writable
from slipstream.comm.group import Group, world
from slipstream.comm.work import Work

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]


def _finish(work: Work, result: Any, keep: Any, async_op: bool) -> Any:
    if async_op:
        return work.holding(keep, result)
    return result


def _rows(array: NDArray[Any]) -> tuple[int, int]:
    """(rows in dim 0, elements per row); a scalar is one row."""
    if array.ndim == 0:
        return 1, 1
    return array.shape[0], int(np.prod(array.shape[1:], dtype=np.int64))


def _row_counts(group: Group, array: NDArray[Any]) -> list[int]:
    """Every rank's number of rows; the other dimensions must agree, which the ranks check here."""
    rows, width = _rows(array)
    mine = np.array([rows, width, array.dtype.num], dtype=np.int64)
    everyone = np.empty((group.size, 3), dtype=np.int64)
    raw.all_gather(group, mine.ctypes.data, everyone.ctypes.data, [3] * group.size, DType.I64, sync=True)
    first = everyone[0]
    for r in range(group.size):
        if everyone[r, 1] != first[1] or everyone[r, 2] != first[2]:
            raise ValueError(
                f"rank {r} of the group has rows of {everyone[r, 1]} elements (dtype {everyone[r, 2]}), "
                f"rank 0 of {first[1]} (dtype {first[2]}): all dimensions but the first must agree"
            )
    return [int(n) for n in everyone[:, 0]]


def all_reduce(
    x: Buffer,
    op: Op | str = Op.SUM,
    *,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Any:
    """Reduces ``x`` (same shape and dtype on all ranks) over the group; every rank gets the same bits."""
    group = group or world()
    array, dtype = contiguous(x)
    result = np.empty_like(array) if out is None else writable(out, array.shape, array)
    source = array.ctypes.data
    work = raw.all_reduce(
        group,
        source,
        source if result is array else result.ctypes.data,
        array.size,
        dtype,
        as_op(op),
        name=name,
        prescale=prescale,
        postscale=postscale,
        sync=not async_op,
    )
    return _finish(work, result, (array, result), async_op)


def reduce_scatter(
    x: Buffer,
    op: Op | str = Op.SUM,
    *,
    out: Buffer | None = None,
    counts: Sequence[int] | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Any:
    """Reduces ``x`` and leaves rank r with its rows: ``counts[r]`` of dim 0, default as even as possible."""
    group = group or world()
    array, dtype = contiguous(x)
    rows, width = _rows(array)
    if counts is None:
        counts = [rows // group.size + (r < rows % group.size) for r in range(group.size)]
    if len(counts) != group.size or sum(counts) != rows:
        raise ValueError(f"counts {list(counts)} do not divide {rows} rows among {group.size} ranks")
    shape = (counts[group.rank], *array.shape[1:])
    result = np.empty(shape, dtype=array.dtype) if out is None else writable(out, shape, array)
    work = raw.reduce_scatter(
        group,
        array.ctypes.data,
        result.ctypes.data,
        [n * width for n in counts],
        dtype,
        as_op(op),
        name=name,
        prescale=prescale,
        postscale=postscale,
        sync=not async_op,
    )
    return _finish(work, result, (array, result), async_op)


def all_gather(
    x: Buffer,
    *,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
) -> Any:
    """Joins every rank's ``x`` along dim 0, in order of rank; the ranks may differ in dim 0 only."""
    group = group or world()
    array, dtype = contiguous(x)
    counts = _row_counts(group, array)
    shape = (sum(counts), *array.shape[1:])
    result = np.empty(shape, dtype=array.dtype) if out is None else writable(out, shape, array)
    width = _rows(array)[1]
    work = raw.all_gather(
        group,
        array.ctypes.data,
        result.ctypes.data,
        [n * width for n in counts],
        dtype,
        name=name,
        sync=not async_op,
    )
    return _finish(work, result, (array, result), async_op)


def broadcast(
    x: Buffer,
    root: int = 0,
    *,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
) -> Any:
    """Gives every rank the root's ``x``; the other ranks' ``x`` tells shape and dtype only."""
    group = group or world()
    array, dtype = contiguous(x)
    result = np.empty_like(array) if out is None else writable(out, array.shape, array)
    work = raw.broadcast(
        group, array.ctypes.data, result.ctypes.data, array.size, dtype, root, name=name, sync=not async_op
    )
    return _finish(work, result, (array, result), async_op)


def reduce(
    x: Buffer,
    root: int = 0,
    op: Op | str = Op.SUM,
    *,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Any:
    """Reduces ``x`` onto the root; other ranks get None."""
    group = group or world()
    array, dtype = contiguous(x)
    mine = group.rank == root
    result = writable(out, array.shape, array) if out is not None and mine else np.empty_like(array)
    work = raw.reduce(
        group,
        array.ctypes.data,
        result.ctypes.data,
        array.size,
        dtype,
        as_op(op),
        root,
        name=name,
        prescale=prescale,
        postscale=postscale,
        sync=not async_op,
    )
    return _finish(work, result if mine else None, (array, result), async_op)


def gather(
    x: Buffer,
    root: int = 0,
    *,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
) -> Any:
    """Joins every rank's ``x`` along dim 0 on the root (dim 0 may differ); other ranks get None."""
    group = group or world()
    array, dtype = contiguous(x)
    counts = _row_counts(group, array)
    mine = group.rank == root
    shape = (sum(counts) if mine else 0, *array.shape[1:])
    result = writable(out, shape, array) if out is not None and mine else np.empty(shape, dtype=array.dtype)
    width = _rows(array)[1]
    work = raw.gather(
        group,
        array.ctypes.data,
        result.ctypes.data,
        [n * width for n in counts],
        dtype,
        root,
        name=name,
        sync=not async_op,
    )
    return _finish(work, result if mine else None, (array, result), async_op)


def scatter(
    x: Buffer,
    root: int = 0,
    *,
    out: Buffer,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
) -> Any:
    """Divides the root's ``x`` along dim 0: each rank gets the rows its ``out`` has space for.

    ``x`` is read on the root alone (pass anything, ``out`` itself say, elsewhere).
    """
    group = group or world()
    target, dtype = contiguous(out)
    result = writable(out, target.shape, target)
    counts = _row_counts(group, result)
    source = result
    if group.rank == root:
        source, given = contiguous(x)
        if given != dtype or _rows(source) != (sum(counts), _rows(result)[1]):
            raise ValueError(f"the root's x has {_rows(source)[0]} rows, the outs {sum(counts)}")
    width = _rows(result)[1]
    work = raw.scatter(
        group,
        source.ctypes.data,
        result.ctypes.data,
        [n * width for n in counts],
        dtype,
        root,
        name=name,
        sync=not async_op,
    )
    return _finish(work, result, (source, result), async_op)


def all_to_all(
    x: Buffer,
    *,
    splits: Sequence[int] | None = None,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
) -> Any:
    """Sends ``splits[p]`` rows of ``x`` to each rank p (default: equally); gets theirs, in order of rank."""
    group = group or world()
    array, dtype = contiguous(x)
    rows, width = _rows(array)
    if splits is None:
        if rows % group.size:
            raise ValueError(f"{rows} rows do not divide equally among {group.size} ranks: give splits")
        splits = [rows // group.size] * group.size
    if len(splits) != group.size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"splits {list(splits)} do not divide {rows} rows among {group.size} ranks")
    sent = np.array(splits, dtype=np.int64)
    received = np.empty_like(sent)
    ones = [1] * group.size
    raw.all_to_all(group, sent.ctypes.data, received.ctypes.data, ones, ones, DType.I64, sync=True)
    shape = (int(received.sum()), *array.shape[1:])
    result = np.empty(shape, dtype=array.dtype) if out is None else writable(out, shape, array)
    if np.may_share_memory(array, result):
        array = array.copy()
    work = raw.all_to_all(
        group,
        array.ctypes.data,
        result.ctypes.data,
        [int(n) * width for n in sent],
        [int(n) * width for n in received],
        dtype,
        name=name,
        sync=not async_op,
    )
    return _finish(work, result, (array, result), async_op)


def barrier(*, group: Group | None = None, async_op: bool = False) -> Any:
    """Returns once every rank of the group has called it."""
    return _finish(raw.barrier(group or world(), sync=not async_op), None, (), async_op)


def send(x: Buffer, dst: int, *, tag: int = 0, group: Group | None = None, async_op: bool = False) -> Any:
    """Sends ``x`` to rank ``dst``, which receives as many elements of this dtype with this tag."""
    group = group or world()
    array, dtype = contiguous(x)
    work = raw.send(group, array.ctypes.data, array.size, dtype, dst, tag, sync=not async_op)
    return _finish(work, None, array, async_op)


def recv(x: Buffer, src: int, *, tag: int = 0, group: Group | None = None, async_op: bool = False) -> Any:
    """Receives into ``x`` (writable, C-contiguous) what rank ``src`` of the group sends with this tag."""
    group = group or world()
    array, dtype = contiguous(x)
    result = writable(x, array.shape, array)
    work = raw.recv(group, result.ctypes.data, result.size, dtype, src, tag, sync=not async_op)
    return _finish(work, result, result, async_op)
