"""Collectives on addresses: what the faces of the frameworks stand on.

``src`` and ``dst`` are addresses of CPU memory, equal for an operation in place; counts are in elements; ``dtype`` and
``op`` are the codes of `slipstream.base.dtypes`. What is read and what is written must be the same memory or have none
in common (ValueError). This rank's block of all_gather and gather may lie in its place in ``dst``, and that of scatter
in its place in ``src``; reduce_scatter and all_to_all do not work in place. ``keep`` holds what must live until the
work is done, the owners of the memory, also if a signal handler's exception ends the call (`CopyBack.keeping`: where a
copy follows). ``timeout``: seconds it may take, 0 for the session's limit. Ranks whose scales differ get Mismatch,
unless ``one_scale`` is False on all of them: then a prescale is the rank's own. ``sync=True`` runs the operation in
the calling thread, which is quicker, and returns a finished work.

``wire``: what float32 data travels as between hosts, a code or name of `WireType`; None: as it is. Sums are formed in
float32 all the same, and every rank gets the same bits, ranks of one host included. It changes nothing in a group
whose ranks are all on one host. Ranks that differ in it get Mismatch.

Every function raises ValueError for arguments that are wrong on this rank, and the session's error if it has
failed; errors of the operation itself are raised by ``Work.wait``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream._core import address_of
from slipstream.base.arguments import as_int, check_int
from slipstream.base.dtypes import DType, Op, WireType, itemsize
from slipstream.comm.collectives.copies_back import OPEN, any_source, settle, settle_tables
from slipstream.comm.collectives.overlaps import (
    check_apart,
    check_counts,
    check_gather,
    check_scatter,
    place_of,
)
from slipstream.comm.collectives.requests import (
    POINT_TO_POINT_CHUNK,
    kept,
    of_all_gather,
    of_all_to_all,
    of_barrier,
    of_broadcast,
    of_gather,
    of_message,
    of_reduce,
    of_reduce_scatter,
    of_scatter,
    of_sum,
    request_of,
    sum_key,
)
from slipstream.comm.collectives.wires import wire_for
from slipstream.comm.collectives.work import DONE, Received, Work
from slipstream.comm.membership.group import Compiled, Group

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "check_root",
    "gather",
    "recv",
    "recv_any",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]

MOST_QUICK_TAG = 0xFFFF  # a `QuickEntry` takes no larger ones

_Copy: TypeAlias = "tuple[int, int, int] | None"


def _issue(
    group: Group,
    compiled: Compiled,
    dtype: int,
    op: int,
    src: int,
    dst: int,
    count: int,
    keep: Any,
    sync: bool,
    name: str | None,
    timeout: float,
    *,
    copy_in: _Copy = None,
    copy_out: _Copy = None,
    quick: tuple[str, int, int, int] | None = None,
    **fields: Any,
) -> Work:
    """``quick``: as what `QuickCalls` is to know a new request. ``fields``: those that are not the plan's."""
    if OPEN:
        settle_tables(
            group, compiled.operation, itemsize(dtype), src, dst, count, (copy_in, copy_out), fields
        )
    key = (dtype, op, *fields.values())
    request = compiled.requests.get(key)
    if request is None:
        request = kept(group, compiled, key, fields)
        if quick is not None:
            group.quick.add(*quick, request)
    call = group.session.run if sync else group.session.submit
    native = call(request, src, dst, count, name or "", timeout, keep, copy_in, copy_out)
    return DONE if native is None else Work(native)


def check_root(group: Group, root: int) -> None:
    """ValueError if the group has no such rank, TypeError if it is no number of one."""
    check_int("root", root)
    if not 0 <= root < group.size:
        raise ValueError(f"root {root} is not in 0..{group.size - 1}")


def all_reduce(
    group: Group,
    src: int,
    dst: int,
    count: int,
    dtype: int,
    op: int,
    *,
    name: str | None = None,
    shape: Sequence[int] = (),
    prescale: float = 1.0,
    postscale: float = 1.0,
    one_scale: bool = True,
    wire: int | str | None = None,
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
    urgency: int = 0,
) -> Work:
    """dst = reduction of every rank's src, ``count`` elements each. Ranks whose ``shape`` differs get Mismatch.

    Operations with more ``urgency``, the same on all ranks, go before those that run already. Their memory is theirs.
    """
    nbytes = count * itemsize(dtype)
    if src != dst:
        check_apart("all_reduce", src, nbytes, dst, nbytes)
    if OPEN:
        settle(group, 0, "all_reduce", (src, nbytes, None), (dst, nbytes, None))
    code = wire_for(group, wire, dtype, op) if wire else WireType.EXACT
    compiled = None if code else group.plans.get(("all_reduce", nbytes.bit_length(), 0))
    compiled = compiled or group.compiled_for(code, "all_reduce", nbytes)
    tuner = compiled.tuned_by
    key: tuple[Any, ...] = (dtype, op)
    if code or len(shape) > 1 or prescale != 1.0 or postscale != 1.0:
        key = sum_key(dtype, op, shape, prescale, postscale, one_scale, code)
    request = compiled.requests.get(key) or _sum_request(group, compiled, key, nbytes, tuner is not None)
    if tuner is not None:  # not before: a call with wrong arguments would count on this rank alone
        compiled, begun = tuner.begin(), time.monotonic()
        request = compiled.requests.get(key) or _sum_request(group, compiled, key, nbytes, True)
    call = group.session.run if sync else group.session.submit
    native = call(request, src, dst, count, name or "", timeout, keep, urgency=urgency)
    if tuner is not None:
        tuner.ran(begun, native)
    return DONE if native is None else Work(native)


def _sum_request(
    group: Group, compiled: Compiled, key: tuple[Any, ...], nbytes: int, tuned: bool
) -> _core.Request:
    """``key``: that of `sum_key`."""
    made = kept(group, compiled, key, of_sum(group, key))
    if len(key) == 2 and not tuned:  # else each call is a step of the tuning
        group.quick.add("all_reduce", nbytes.bit_length(), *key, made)
    return made


def _unite(
    group: Group,
    way: Compiled,
    part: NDArray[np.uint8],
    mine: tuple[int, int, int] | None,
    dst: int,
    keep: Any,
    sync: bool,
    name: str | None,
    timeout: float,
    **details: Any,
) -> Work:
    """dst = the bytes of all ranks' parts; where one has its own, the others have zeros. For few bytes.

    ``mine``: from where, and to which byte of ``part``, how many bytes are copied when the work begins. ``details``:
    the fields.
    """
    fields = {**details, "copy_in": mine}
    address = part.ctypes.data
    return _issue(group, way, DType.U8, Op.BOR, address, dst, part.size, keep, sync, name, timeout, **fields)


def reduce_scatter(
    group: Group,
    src: int,
    dst: int,
    counts: Sequence[int],
    dtype: int,
    op: int,
    *,
    name: str | None = None,
    shape: Sequence[int] = (),
    prescale: float = 1.0,
    postscale: float = 1.0,
    one_scale: bool = True,
    wire: int | str | None = None,
    even: bool = False,
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
) -> Work:
    """dst = this rank's block of the reduction; src holds all blocks, ``counts[r]`` elements for rank r.

    ``even``: the counts are those that a call gets which gives none.
    """
    check_counts(group, counts, "counts")
    total, size = sum(counts), itemsize(dtype)
    if src != dst or counts[group.rank] != total:
        check_apart("reduce_scatter", src, total * size, dst, counts[group.rank] * size)
    code = wire_for(group, wire, dtype, op) if wire else WireType.EXACT
    compiled, fields = of_reduce_scatter(
        group, tuple(counts), dtype, op, shape, prescale, postscale, one_scale, code
    )
    if compiled.reducers:
        whole = np.empty(total * size, dtype=np.uint8)  # the reduction, of which dst gets this rank's block
        fields["copy_out"] = (dst, sum(counts[: group.rank]) * size, counts[group.rank] * size)
        dst, keep = whole.ctypes.data, (keep, whole)
    elif even and not code and "prescale" not in fields and not fields["shape"]:
        fields["quick"] = "reduce_scatter", total, dtype, op
    return _issue(group, compiled, dtype, op, src, dst, total, keep, sync, name, timeout, **fields)


def all_gather(
    group: Group,
    src: int,
    dst: int,
    counts: Sequence[int],
    dtype: int,
    *,
    name: str | None = None,
    wire: int | str | None = None,
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
) -> Work:
    """dst = every rank's src, one after another; rank r contributes ``counts[r]`` elements."""
    check_counts(group, counts, "counts")
    total = sum(counts)
    check_gather("all_gather", group, src, dst, counts, dtype)
    code = wire_for(group, wire, dtype, -1) if wire else WireType.EXACT
    compiled, fields = of_all_gather(group, tuple(counts), dtype, code)
    if compiled.reducers:
        parts = np.zeros(total * itemsize(dtype), dtype=np.uint8)
        mine, keep = (src, *place_of(counts, group.rank, dtype)), (keep, parts)
        return _unite(group, compiled, parts, mine, dst, keep, sync, name, timeout, **fields)
    if not code and min(counts) == max(counts):
        fields["quick"] = "long_gather", counts[0], dtype, 0
    return _issue(group, compiled, dtype, -1, src, dst, total, keep, sync, name, timeout, **fields)


def broadcast(
    group: Group,
    src: int,
    dst: int,
    count: int,
    dtype: int,
    root: int,
    *,
    name: str | None = None,
    shape: Sequence[int] = (),
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
) -> Work:
    """dst = the root's src (which other ranks do not read), ``count`` elements."""
    check_root(group, root)
    nbytes = count * itemsize(dtype)
    if src != dst:
        check_apart("broadcast", src, nbytes, dst, nbytes)
    compiled, fields = of_broadcast(group, nbytes, dtype, root, shape)
    if compiled.reducers:
        part = np.zeros(nbytes, dtype=np.uint8)
        mine = (src, 0, nbytes) if group.rank == root else None
        return _unite(group, compiled, part, mine, dst, (keep, part), sync, name, timeout, **fields)
    quick = None if fields["shape"] else ("broadcast", nbytes.bit_length(), dtype, root)
    return _issue(
        group, compiled, dtype, -1, src, dst, count, keep, sync, name, timeout, quick=quick, **fields
    )


def reduce(
    group: Group,
    src: int,
    dst: int,
    count: int,
    dtype: int,
    op: int,
    root: int,
    *,
    name: str | None = None,
    shape: Sequence[int] = (),
    prescale: float = 1.0,
    postscale: float = 1.0,
    one_scale: bool = True,
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
) -> Work:
    """dst on the root = reduction of every rank's src; on other ranks dst is scratch of the same size."""
    check_root(group, root)
    nbytes = count * itemsize(dtype)
    if src != dst:
        check_apart("reduce", src, nbytes, dst, nbytes)
    compiled, fields = of_reduce(group, nbytes, op, root, shape, prescale, postscale, one_scale)
    plain = not fields["shape"] and prescale == 1.0 and postscale == 1.0
    quick = ("reduce", nbytes.bit_length(), dtype, root << 4 | op) if plain else None
    return _issue(
        group, compiled, dtype, op, src, dst, count, keep, sync, name, timeout, quick=quick, **fields
    )


def gather(
    group: Group,
    src: int,
    dst: int,
    counts: Sequence[int],
    dtype: int,
    root: int,
    *,
    name: str | None = None,
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
) -> Work:
    """dst on the root = every rank's src, one after another; rank r sends ``counts[r]`` elements."""
    check_root(group, root)
    check_counts(group, counts, "counts")
    if group.rank == root:
        check_gather("gather", group, src, dst, counts, dtype)
    compiled, fields = of_gather(group, tuple(counts), dtype, root)
    if min(counts) == max(counts):
        fields["quick"] = "long_collect", counts[0], dtype, root
    return _issue(group, compiled, dtype, -1, src, dst, sum(counts), keep, sync, name, timeout, **fields)


def scatter(
    group: Group,
    src: int,
    dst: int,
    counts: Sequence[int],
    dtype: int,
    root: int,
    *,
    name: str | None = None,
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
) -> Work:
    """dst = this rank's block of the root's src, ``counts[r]`` elements for rank r."""
    check_root(group, root)
    check_counts(group, counts, "counts")
    if group.rank == root:
        check_scatter(group, src, dst, counts, dtype)
    compiled, fields = of_scatter(group, tuple(counts), dtype, root)
    if min(counts) == max(counts):
        fields["quick"] = "long_divide", counts[0], dtype, root
    return _issue(group, compiled, dtype, -1, src, dst, sum(counts), keep, sync, name, timeout, **fields)


def all_to_all(
    group: Group,
    src: int,
    dst: int,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    dtype: int,
    *,
    name: str | None = None,
    wire: int | str | None = None,
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
) -> Work:
    """Block p of src goes to rank p; block p of dst comes from rank p. Counts are elements per rank."""
    check_counts(group, send_counts, "send_counts")
    check_counts(group, recv_counts, "recv_counts")
    size = itemsize(dtype)
    check_apart("all_to_all", src, sum(send_counts) * size, dst, sum(recv_counts) * size)
    if send_counts[group.rank] != recv_counts[group.rank]:
        raise ValueError("send_counts and recv_counts disagree about this rank's own block")
    code = wire_for(group, wire, dtype, -1) if wire else WireType.EXACT
    compiled, fields = of_all_to_all(group, send_counts, recv_counts, dtype, code)
    if not code and len({*send_counts, *recv_counts}) == 1:
        fields["quick"] = "long_exchange", sum(send_counts), dtype, 0
    return _issue(group, compiled, dtype, -1, src, dst, 0, keep, sync, name, timeout, **fields)


def barrier(group: Group, *, name: str | None = None, sync: bool = False, timeout: float = 0.0) -> Work:
    """Done once every rank of the group has called it."""
    way, dtype, op = of_barrier(group)
    address = address_of(group.token)
    quick = "barrier", 0, 0, 0
    return _issue(group, way, dtype, op, address, address, 1, group, sync, name, timeout, quick=quick)


def send(
    group: Group,
    src: int,
    count: int,
    dtype: int,
    target: int,
    tag: int = 0,
    *,
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
) -> Work:
    """Sends ``count`` elements to rank ``target`` of the group, which must `recv` as many with this tag."""
    return _point_to_point(group, "send", src, count, dtype, target, tag, keep, sync, timeout)


def recv(
    group: Group,
    dst: int,
    count: int,
    dtype: int,
    source: int,
    tag: int = 0,
    *,
    keep: Any,
    sync: bool = False,
    timeout: float = 0.0,
) -> Work:
    """Receives what rank ``source`` of the group sends with this tag, in its order."""
    return _point_to_point(group, "recv", dst, count, dtype, source, tag, keep, sync, timeout)


def recv_any(
    group: Group,
    dst: int,
    count: int,
    dtype: int,
    tag: int = 0,
    *,
    keep: Any,
    timeout: float = 0.0,
) -> Received:
    """Receives what the first other rank of the group to send with this tag sends; ``source()`` tells which.

    Messages of one rank are taken in its order: a `recv` posted after this one does not overtake it. Ranks that
    have left are passed over; PeerLost is raised if there is no other. A rank cannot send to itself.
    """
    if group.size < 2:
        raise ValueError("cannot recv: the group has no other rank")
    tag = as_int(tag)
    settle(group, any_source(group, tag), "recv", (dst, count * itemsize(dtype), None))
    sources = [rank for rank in range(group.size) if rank != group.rank]
    compiled = [group.point_to_point("recv", source, POINT_TO_POINT_CHUNK) for source in sources]
    request = request_of(group, compiled[0], dtype, -1, extra=tag & 0xFFFFFFFF)
    channels = [group.channel(source, group.rank, tag) for source in sources]
    ways = [(way.native, channel) for way, channel in zip(compiled, channels, strict=True)]
    return Received(group.session.receive_any(request, ways, dst, count, timeout, keep))


def _point_to_point(
    group: Group,
    kind: str,
    address: int,
    count: int,
    dtype: int,
    peer: int,
    tag: int,
    keep: Any,
    sync: bool,
    timeout: float,
) -> Work:
    peer, tag = as_int(peer), as_int(tag)
    plan, fields = of_message(group, kind, peer, tag)
    quick = (kind, tag, dtype, peer) if 0 <= tag <= MOST_QUICK_TAG else None
    return _issue(
        group, plan, dtype, -1, address, address, count, keep, sync, None, timeout, quick=quick, **fields
    )
