"""Collectives on arrays: NumPy, PyTorch's tensors, any buffer, DLPack.

Each takes ``group`` (default: all ranks), ``async_op`` (return a `Work` at once; its ``wait`` gives the
result) and ``name``. All members of a group call the same operations in the same order. ``out`` may be the
input itself, or this rank's place in it (reduce_scatter, scatter), or the input may be its place in ``out``
(all_gather, gather). Other overlaps are a ValueError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream._core import address_of
from slipstream.base.arguments import check_int, check_text
from slipstream.base.dtypes import Op, as_op
from slipstream.comm.collectives import addresses, ragged
from slipstream.comm.collectives.buffers import Buffer, as_given, check_memory, contiguous, writable
from slipstream.comm.collectives.copies_back import OPEN
from slipstream.comm.collectives.interruption import Together, whole
from slipstream.comm.collectives.joined import (
    collect_told,
    collect_unusual,
    divide_told,
    divide_unusual,
    exchange_told,
    exchange_unusual,
    gather_told,
    gather_unusual,
)
from slipstream.comm.collectives.rows import FIELDS, head_of, rows_of
from slipstream.comm.collectives.wires import check_wire
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership import job
from slipstream.comm.membership.group import Group, check_group, world

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

_F = TypeVar("_F", bound=Callable[..., Any])
_CHECKS = {
    "group": check_group,
    "name": check_text,
    **dict.fromkeys(("root", "src", "dst", "tag"), check_int),
}


# Those that may be called without Python; some go on with a function where that is not enough (`QuickEntry`). Messages
# have the class of what an asynchronous call returns.
_QUICK = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "broadcast", "reduce", "barrier")),
    "all_gather": gather_unusual,
    "all_to_all": exchange_unusual,
    "gather": collect_unusual,
    "scatter": divide_unusual,
    "send": Work,
    "recv": Work,
}


def _quick(collective: str) -> _core.QuickEntry | None:
    if collective not in _QUICK:
        return None
    return _core.QuickEntry(collective, vars(job), OPEN, Op, _QUICK[collective])


def _collective(function: _F, *, fills_x: bool = False) -> _F:
    """Decorates a collective: its call is whole (`interruption.whole`), and gives a PyTorch tensor if it is given one.

    The tensor is ``out`` itself, or a new one with the result. ``fills_x``: the result is what the call was given.
    """

    @functools.wraps(function)
    def collective(x: Buffer, *args: Any, **kwargs: Any) -> Any:
        found = function(x, *args, **kwargs)
        out = x if fills_x else kwargs.get("out")
        if type(x if out is None else out) is np.ndarray:  # nearly always
            return found
        return as_given(found, x, out)

    quick = _quick(function.__name__)
    return whole(lambda *_, **__: world(), checks=_CHECKS, quick=quick)(collective)  # type: ignore[return-value]


def _finish(work: Work, result: Any, async_op: bool) -> Any:
    return work.giving(result) if async_op else result


def _tell_all(
    group: Group,
    operation: str,
    head: Sequence[int],
    array: NDArray[Any],
    size: int,
    name: str | None,
    root: int = -1,
) -> ragged.Told:
    """Tells all ranks ``head``, with the first ``size`` bytes of ``array`` if they are few."""
    fits = ragged.fits(group, operation, len(head), address_of(array), size, size)
    return ragged.tell_all(group, operation, head, address_of(array), size, fits, name, root)


@_collective
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
    wire: str | None = None,
) -> Any:
    """Reduces ``x`` over the group, element by element; every rank gets the whole result, with the same bits.

    ``x``: a NumPy array, CPU tensor or buffer of the same shape and dtype on all ranks. ``op``: the reduction, or
    its name ("max"); "avg" of integers truncates toward zero. ``out``: takes the result, may be ``x`` itself;
    default: a new array, or tensor where ``x`` is one. ``prescale``, ``postscale``: factors of every rank's ``x``,
    and of the result, the same on all ranks. Integers are truncated after each factor: ``prescale=0.5``
    makes 0 of a 1 on every rank, before the sum. ``group``: the ranks that take part, default all. ``async_op``:
    return a `Work` at once, whose ``wait()`` gives the result. ``name``: what errors and the timeline call the
    operation. ``wire``: what float32 sums and averages travel as between hosts, "bf16", "f16", "f8" or "int8";
    default: as they are. Returns the result. Raises TypeError or ValueError for arguments that do not fit, a
    SlipstreamError when the operation fails.

    >>> slipstream.all_reduce(numpy.ones(3))
    array([2., 2., 2.])
    """
    group = world() if group is None else group
    array, dtype = contiguous(x, group, "all_reduce")
    result = np.empty_like(array) if out is None else writable(out, array.shape, array)
    source = address_of(array)
    work = addresses.all_reduce(
        group,
        source,
        source if result is array else address_of(result),
        array.size,
        dtype,
        as_op(op),
        name=name,
        shape=array.shape,
        prescale=prescale,
        postscale=postscale,
        wire=wire,
        keep=(array, result),
        sync=not async_op,
    )
    return _finish(work, result, async_op)


@_collective
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
    wire: str | None = None,
) -> Any:
    """Reduces ``x`` over the group, element by element, and leaves each rank with some rows of the result.

    ``x``: a NumPy array, CPU tensor or buffer of the same shape and dtype on all ranks. ``op``: the reduction, or
    its name ("max"). ``counts``: how many rows of dim 0 each rank gets, default as even as possible. ``out``: takes
    this rank's rows; default: a new array, or tensor where ``x`` is one. ``prescale``, ``postscale``: factors of
    every rank's ``x``, and of the result; integers truncate, as in `all_reduce`. ``group``: the ranks that take
    part, default all. ``async_op``: return a `Work` at once, whose ``wait()`` gives the result. ``name``: what
    errors and the timeline call the operation. ``wire``: as in `all_reduce`. Returns this rank's rows. Raises
    TypeError or ValueError for arguments that do not fit, a SlipstreamError when the operation fails.

    >>> slipstream.reduce_scatter(numpy.arange(4.0))  # on rank 0
    array([0., 2.])
    """
    group = world() if group is None else group
    array, dtype = contiguous(x, group, "reduce_scatter")
    rows, width = rows_of(array)
    even = counts is None
    if counts is None:
        counts = [rows // group.size + (r < rows % group.size) for r in range(group.size)]
    if len(counts) != group.size or sum(counts) != rows:
        raise ValueError(f"counts {list(counts)} do not divide {rows} rows among {group.size} ranks")
    shape = (counts[group.rank], *array.shape[1:])
    result = np.empty(shape, dtype=array.dtype) if out is None else writable(out, shape, array)
    begin = sum(counts[: group.rank]) * width * array.itemsize
    if address_of(result) == address_of(array) + begin:  # its place in x, as NCCL has it in place
        array = array.copy()
    work = addresses.reduce_scatter(
        group,
        address_of(array),
        address_of(result),
        [n * width for n in counts],
        dtype,
        as_op(op),
        name=name,
        shape=array.shape,
        prescale=prescale,
        postscale=postscale,
        wire=wire,
        even=even,
        keep=(array, result),
        sync=not async_op,
    )
    return _finish(work, result, async_op)


@_collective
def all_gather(
    x: Buffer,
    *,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
    wire: str | None = None,
) -> Any:
    """Joins every rank's ``x`` along dim 0, in order of rank; every rank gets all of it.

    ``x``: a NumPy array, CPU tensor or buffer; the ranks may differ in dim 0 only. ``out``: takes the result;
    default: a new array, or tensor where ``x`` is one. ``group``: the ranks that take part, default all.
    ``async_op``: return a `Work` at once, whose ``wait()`` gives the result. ``name``: what errors and the
    timeline call the operation. ``wire``: what float32 data travels as between hosts, as in `all_reduce`; but for
    small arrays, all of the result is rounded then. Returns the result. Raises TypeError or ValueError for arguments
    that do not fit, a SlipstreamError when the operation fails.

    >>> slipstream.all_gather(numpy.array([slipstream.rank()]))
    array([0, 1])
    """
    group = world() if group is None else group
    array, dtype = contiguous(x, group, "all_gather")
    check_text("name", name)
    check_wire(wire, dtype)
    if out is not None:
        check_memory(out)
    head = head_of(array, dtype)
    with Together(group, "all_gather"):
        told = _tell_all(group, "all_gather", head, array, array.nbytes, name)
        work, result = gather_told(
            group, told, array, dtype, head[1], out, name=name, wire=wire, sync=not async_op
        )
    return _finish(work, result, async_op)


@_collective
def broadcast(
    x: Buffer,
    root: int = 0,
    *,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
) -> Any:
    """Gives every rank the root's ``x``.

    ``x``: a NumPy array, CPU tensor or buffer of the same shape and dtype on all ranks; only the root's values
    count. ``root``: the rank of the group whose values all get. ``out``: takes them, may be ``x`` itself; default:
    a new array, or tensor where ``x`` is one. ``group``: the ranks that take part, default all. ``async_op``:
    return a `Work` at once, whose ``wait()`` gives the result. ``name``: what errors and the timeline call the
    operation. Returns the root's values. Raises TypeError or ValueError for arguments that do not fit, a
    SlipstreamError when the operation fails.

    >>> slipstream.broadcast(numpy.array([slipstream.rank() + 5]), root=1)
    array([6])
    """
    group = world() if group is None else group
    array, dtype = contiguous(x, group, "broadcast")
    result = np.empty_like(array) if out is None else writable(out, array.shape, array)
    work = addresses.broadcast(
        group,
        address_of(array),
        address_of(result),
        array.size,
        dtype,
        root,
        name=name,
        shape=array.shape,
        keep=(array, result),
        sync=not async_op,
    )
    return _finish(work, result, async_op)


@_collective
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
    """Reduces ``x`` over the group, element by element, onto one rank.

    ``x``: a NumPy array, CPU tensor or buffer of the same shape and dtype on all ranks. ``root``: the rank of the
    group that gets the result. ``op``: the reduction, or its name ("max"). ``out``: takes the result on the root;
    default: a new array, or tensor where ``x`` is one. ``prescale``, ``postscale``: factors of every rank's ``x``,
    and of the result; integers truncate, as in `all_reduce`. ``group``: the ranks that take part, default all.
    ``async_op``: return a `Work` at once, whose ``wait()`` gives the result. ``name``: what errors and the timeline
    call the operation. Returns the result on the root, None on other ranks. Raises TypeError or ValueError for
    arguments that do not fit, a SlipstreamError when the operation fails.

    >>> slipstream.reduce(numpy.array([slipstream.rank()]), root=0, op="max")  # on rank 0
    array([1])
    """
    group = world() if group is None else group
    array, dtype = contiguous(x, group, "reduce")
    if out is not None:
        check_memory(out)
    mine = group.rank == root
    result = writable(out, array.shape, array) if out is not None and mine else np.empty_like(array)
    work = addresses.reduce(
        group,
        address_of(array),
        address_of(result),
        array.size,
        dtype,
        as_op(op),
        root,
        name=name,
        shape=array.shape,
        prescale=prescale,
        postscale=postscale,
        keep=(array, result),
        sync=not async_op,
    )
    return _finish(work, result if mine else None, async_op)


@_collective
def gather(
    x: Buffer,
    root: int = 0,
    *,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
) -> Any:
    """Joins every rank's ``x`` along dim 0, in order of rank, on one rank.

    ``x``: a NumPy array, CPU tensor or buffer; the ranks may differ in dim 0 only. ``root``: the rank of the group
    that gets the result. ``out``: takes the result on the root; default: a new array, or tensor where ``x`` is
    one. ``group``: the ranks that take part, default all. ``async_op``: return a `Work` at once, whose ``wait()``
    gives the result. ``name``: what errors and the timeline call the operation. Returns the result on the root,
    None on other ranks. Raises TypeError or ValueError for arguments that do not fit, a SlipstreamError when the
    operation fails.

    >>> slipstream.gather(numpy.array([slipstream.rank()]))  # on rank 0
    array([0, 1])
    """
    group = world() if group is None else group
    array, dtype = contiguous(x, group, "gather")
    addresses.check_root(group, root)
    check_text("name", name)
    if out is not None:
        check_memory(out)
    head = head_of(array, dtype)
    with Together(group, "gather"):
        sizes = [array.nbytes if rank == root else 0 for rank in range(group.size)]
        fits = ragged.fits(group, "gather", len(head), address_of(array), array.nbytes, array.nbytes)
        heads = [head] * group.size
        told = ragged.tell_each(group, "gather", heads, address_of(array), sizes, fits, name, root)
        work, result = collect_told(
            group, told, array, dtype, head[1], root, out, name=name, sync=not async_op
        )
    return _finish(work, result, async_op)


@_collective
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

    ``x``: a NumPy array, CPU tensor or buffer, read on the root alone (pass anything, ``out`` itself say,
    elsewhere). ``root``: the rank of the group whose rows are divided. ``out``: takes this rank's rows. ``group``:
    the ranks that take part, default all. ``async_op``: return a `Work` at once, whose ``wait()`` gives the
    result. ``name``: what errors and the timeline call the operation. Returns ``out``. Raises TypeError or
    ValueError for arguments that do not fit, a SlipstreamError when the operation fails.

    >>> slipstream.scatter(numpy.arange(4.0), out=numpy.empty(2))  # on rank 0
    array([0., 1.])
    """
    group = world() if group is None else group
    addresses.check_root(group, root)
    check_text("name", name)
    check_memory(out)
    target, dtype = contiguous(out)
    result = writable(out, target.shape, target)
    own = head_of(result, dtype)
    source, given = result, (0,) * FIELDS
    if group.rank == root:
        source, kind = contiguous(x, group, "scatter")
        given = head_of(source, kind)
    with Together(group, "scatter"):
        size = source.nbytes if group.rank == root else 0
        told = _tell_all(group, "scatter", (*own, *given), source, size, name, root)
        work = divide_told(group, told, source, result, dtype, own[1], root, name=name, sync=not async_op)
    return _finish(work, result, async_op)


@_collective
def all_to_all(
    x: Buffer,
    *,
    splits: Sequence[int] | None = None,
    out: Buffer | None = None,
    group: Group | None = None,
    async_op: bool = False,
    name: str | None = None,
    wire: str | None = None,
) -> Any:
    """Sends some rows of ``x`` to each rank, and gets theirs, in order of rank.

    ``x``: a NumPy array, CPU tensor or buffer; the ranks may differ in dim 0 only. ``splits``: how many rows of
    dim 0 go to each rank, default equally many. ``out``: takes what comes; default: a new array, or tensor where
    ``x`` is one. ``group``: the ranks that take part, default all. ``async_op``: return a `Work` at once, whose
    ``wait()`` gives the result. ``name``: what errors and the timeline call the operation. ``wire``: as in
    `all_gather`. Returns the rows from all ranks. Raises TypeError or ValueError for arguments that do not fit, a
    SlipstreamError when the operation fails.

    >>> slipstream.all_to_all(numpy.arange(4) + 10 * slipstream.rank())  # on rank 0
    array([ 0,  1, 10, 11])
    """
    group = world() if group is None else group
    array, dtype = contiguous(x, group, "all_to_all")
    check_text("name", name)
    check_wire(wire, dtype)
    if out is not None:
        check_memory(out)
    rows, *kind = head_of(array, dtype)
    width = kind[0]
    if splits is None:
        if rows % group.size:
            raise ValueError(f"{rows} rows do not divide equally among {group.size} ranks: give splits")
        splits = [rows // group.size] * group.size
    if len(splits) != group.size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"splits {list(splits)} do not divide {rows} rows among {group.size} ranks")
    sent = [int(n) * width for n in splits]
    with Together(group, "all_to_all"):
        sizes = [n * array.itemsize for n in sent]
        heads = [(int(n), *kind) for n in splits]
        fits = ragged.fits(group, "all_to_all", FIELDS, address_of(array), array.nbytes, max(sizes))
        told = ragged.tell_each(group, "all_to_all", heads, address_of(array), sizes, fits, name)
        work, result = exchange_told(
            group, told, array, dtype, width, splits, out, name=name, wire=wire, sync=not async_op
        )
    return _finish(work, result, async_op)


@whole(lambda **_: world(), checks=_CHECKS, quick=_quick("barrier"))
def barrier(*, group: Group | None = None, async_op: bool = False) -> Any:
    """Returns once every rank of the group has called it.

    ``group``: the ranks that take part, default all. ``async_op``: return a `Work` at once, whose ``wait()``
    returns then. Raises a SlipstreamError when a rank is lost or does not come in time.

    >>> slipstream.barrier()
    """
    check_group("group", group)
    return _finish(addresses.barrier(world() if group is None else group, sync=not async_op), None, async_op)


@_collective
def send(x: Buffer, dst: int, *, tag: int = 0, group: Group | None = None, async_op: bool = False) -> Any:
    """Sends ``x`` to one rank, which calls `recv`.

    ``x``: a NumPy array, CPU tensor or buffer; the receiver takes as many elements of its dtype. ``dst``: the rank
    of the group that gets it. ``tag``: tells messages between two ranks apart; those of one tag keep their order.
    ``group``: the ranks that ``dst`` counts in, default all. ``async_op``: return a `Work` at once; ``x`` is free
    after its ``wait()``. Returns None once ``x`` may be changed. Above 16 KiB that may be when the receiver has
    called `recv`, and for shorter ones if about 1 MiB of them waits at the receiver, where each counts 64 bytes
    more. So two ranks that both send first need ``async_op``. Raises TypeError or ValueError for arguments that do
    not fit, a SlipstreamError when the operation fails.

    >>> other = 1 - slipstream.rank()
    >>> work = slipstream.send(numpy.ones(2), other, async_op=True)
    >>> slipstream.recv(numpy.empty(2), other)
    array([1., 1.])
    >>> work.wait()
    """
    group = world() if group is None else group
    array, dtype = contiguous(x, group, "send", (group.rank, dst, tag))
    work = addresses.send(
        group, address_of(array), array.size, dtype, dst, tag, keep=array, sync=not async_op
    )
    return _finish(work, None, async_op)


@partial(_collective, fills_x=True)
def recv(x: Buffer, src: int, *, tag: int = 0, group: Group | None = None, async_op: bool = False) -> Any:
    """Receives what one rank sends by `send`.

    ``x``: a NumPy array, CPU tensor or buffer that takes it; writable, C-contiguous, as many elements of the same
    dtype as are sent. ``src``: the rank of the group that sends. ``tag``: the tag it sends with. ``group``: the
    ranks that ``src`` counts in, default all. ``async_op``: return a `Work` at once, whose ``wait()`` gives ``x``.
    Returns ``x``. Raises TypeError or ValueError for arguments that do not fit, a SlipstreamError when the
    operation fails. Where both ends have no elements nothing is sent, and both calls return at once.

    >>> other = 1 - slipstream.rank()
    >>> work = slipstream.send(numpy.array([slipstream.rank()]), other, async_op=True)
    >>> slipstream.recv(numpy.empty(1, int), other)  # on rank 0
    array([1])
    >>> work.wait()
    """
    group = world() if group is None else group
    check_memory(x, "x")
    array, dtype = contiguous(x)
    result = writable(x, array.shape, array, "x")
    work = addresses.recv(
        group, address_of(result), result.size, dtype, src, tag, keep=result, sync=not async_op
    )
    return _finish(work, result, async_op)
