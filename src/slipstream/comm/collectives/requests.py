"""What a collective asks of the engine, but for the memory: the plan, and the fields of its request.

`addresses` issues them on memory, and `native_calls` hands them to the C table, which issues them itself. Each function
takes checked arguments and returns the plan and the fields; where reducers take part, what it says of memory is the
caller's to add (``compiled.reducers``). Counts are in elements, ``dtype`` and ``op`` are codes, ``wire`` is one, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream import _core
from slipstream.base.dtypes import DType, Op, WireType, itemsize
from slipstream.comm.collectives.overlaps import offsets_of, offsets_of_one
from slipstream.comm.collectives.signatures import (
    as_scales,
    detailed,
    digest,
    digest_of_scales,
    shape_to_compare,
)
from slipstream.comm.membership.group import Compiled, Group

__all__ = [
    "kept",
    "of_all_gather",
    "of_all_to_all",
    "of_barrier",
    "of_broadcast",
    "of_gather",
    "of_message",
    "of_reduce",
    "of_reduce_scatter",
    "of_scatter",
    "of_sum",
    "request_of",
    "sum_key",
]

_MOST_REQUESTS = 64  # that a plan keeps
_AVG = int(Op.AVG)
POINT_TO_POINT_CHUNK = 256 << 10

Fields = dict[str, Any]
Asked = tuple[Compiled, Fields]


def request_of(group: Group, compiled: Compiled, dtype: int, op: int, **fields: Any) -> _core.Request:
    """A new request. ``fields``: those of the engine's request, and what ranks compare (`detailed`)."""
    details = {name: fields.pop(name) for name in ("shape", "counts", "of") if name in fields}
    scales = {name: fields[name] for name in ("prescale", "postscale") if name in fields}
    if not fields.pop("one_scale", True):  # what the operation says of itself is compared
        scales.clear()
    operation = detailed(compiled.operation, ranks=group.unsorted, **details, **scales)
    return _core.Request(
        group=group.native,
        plan=compiled.native,
        operation=operation,
        dtype=dtype,
        op=op,
        chunk_bytes=compiled.chunk_bytes,
        **fields,
    )


def kept(group: Group, compiled: Compiled, key: tuple[Any, ...], fields: Fields) -> _core.Request:
    """Makes the request of ``key``, which begins with dtype and op, and keeps it for calls like this one."""
    if len(compiled.requests) >= _MOST_REQUESTS:
        compiled.requests.clear()
    return compiled.requests.setdefault(key, request_of(group, compiled, key[0], key[1], **fields))


def sum_key(
    dtype: int,
    op: int,
    shape: Sequence[int],
    prescale: float,
    postscale: float,
    one_scale: bool,
    wire: WireType,
) -> tuple[Any, ...]:
    """The key of an all_reduce's request: dtype and op; and all the rest, if any of it matters."""
    if not (wire or len(shape) > 1 or prescale != 1.0 or postscale != 1.0):
        return (dtype, op)
    scales = as_scales(prescale, postscale)
    return (dtype, op, shape_to_compare(shape), *scales, digest_of_scales(*scales), one_scale, wire)


def of_sum(group: Group, key: tuple[Any, ...]) -> Fields:
    """The fields of an all_reduce, by its `sum_key`."""
    fields: Fields = {"divisor": group.size if key[1] == _AVG else 1}
    if len(key) > 2:
        shape, prescale, postscale, digest_of_both, compared, wire = key[2:]
        fields |= {"shape": shape, "prescale": prescale, "postscale": postscale, "wire": wire}
        fields |= {"extra": digest_of_both if compared else 0, "one_scale": compared}
    return fields


def of_reduce_scatter(
    group: Group,
    counts: tuple[int, ...],
    dtype: int,
    op: int,
    shape: Sequence[int],
    prescale: float,
    postscale: float,
    one_scale: bool,
    wire: WireType,
) -> Asked:
    """``counts[r]``: elements of the block that rank r gets."""
    fields: Fields = {
        "shape": shape_to_compare(shape),
        "counts": counts,
        "extra": digest(counts),
        "divisor": group.size if op == _AVG else 1,
        "wire": wire,
    }
    if prescale != 1.0 or postscale != 1.0:
        scales = as_scales(prescale, postscale)
        fields |= {"prescale": scales[0], "postscale": scales[1], "one_scale": one_scale}
        fields["extra"] ^= digest_of_scales(*scales) if one_scale else 0
    compiled = group.compiled_for(wire, "reduce_scatter", sum(counts) * itemsize(dtype))
    if not compiled.reducers:
        fields["in_offsets"], fields["out_offsets"] = offsets_of(counts), offsets_of_one(counts, group.rank)
    return compiled, fields


def of_all_gather(group: Group, counts: tuple[int, ...], dtype: int, wire: WireType) -> Asked:
    """``counts[r]``: elements that rank r gives. With reducers the bytes of all ranks' parts are united."""
    compiled = group.compiled_for(wire, "all_gather", sum(counts) * itemsize(dtype))
    fields: Fields = {"counts": counts, "extra": digest(counts)}
    if compiled.reducers:
        return compiled, {"root": -1, "of": dtype, **fields}
    tables = {"in_offsets": offsets_of_one(counts, group.rank), "out_offsets": offsets_of(counts)}
    return compiled, {**tables, **fields, "wire": wire}


def of_broadcast(group: Group, nbytes: int, dtype: int, root: int, shape: Sequence[int]) -> Asked:
    """With reducers the root's bytes are united with the others' zeros."""
    compiled = group.compiled("broadcast", nbytes, root)
    fields: Fields = {"root": root, "shape": shape_to_compare(shape)}
    if compiled.reducers:
        fields["of"] = dtype
    return compiled, fields


def of_reduce(
    group: Group,
    nbytes: int,
    op: int,
    root: int,
    shape: Sequence[int],
    prescale: float,
    postscale: float,
    one_scale: bool,
) -> Asked:
    """``nbytes``: of the memory of each rank."""
    scales = as_scales(prescale, postscale)
    return group.compiled("reduce", nbytes, root), {
        "root": root,
        "shape": shape_to_compare(shape),
        "prescale": scales[0],
        "postscale": scales[1],
        "divisor": group.size if op == _AVG else 1,
        "extra": digest_of_scales(*scales) if one_scale else 0,
        "one_scale": one_scale,
    }


def of_gather(group: Group, counts: tuple[int, ...], dtype: int, root: int) -> Asked:
    """``counts[r]``: elements that rank r gives."""
    return group.compiled("gather", sum(counts) * itemsize(dtype), root), {
        "root": root,
        "in_offsets": offsets_of_one(counts, group.rank),
        "out_offsets": offsets_of(counts) if group.rank == root else (0,) * (group.size + 1),
        "counts": counts,
        "extra": digest(counts),
    }


def of_scatter(group: Group, counts: tuple[int, ...], dtype: int, root: int) -> Asked:
    """``counts[r]``: elements that rank r gets."""
    return group.compiled("scatter", sum(counts) * itemsize(dtype), root), {
        "root": root,
        "in_offsets": offsets_of(counts) if group.rank == root else (0,) * (group.size + 1),
        "out_offsets": offsets_of_one(counts, group.rank),
        "counts": counts,
        "extra": digest(counts),
    }


def of_all_to_all(
    group: Group, send_counts: Sequence[int], recv_counts: Sequence[int], dtype: int, wire: WireType
) -> Asked:
    """Elements that go to each rank, and that come from it."""
    sent = (sum(send_counts) - send_counts[group.rank]) * itemsize(dtype)
    # ranks may hold different totals, so nothing that depends on the size may choose the plan
    compiled = group.compiled_for(wire, "all_to_all", 1 << 20, sent)
    return compiled, {
        "in_offsets": offsets_of(send_counts),
        "out_offsets": offsets_of(recv_counts),
        "wire": wire,
    }


def of_barrier(group: Group) -> tuple[Compiled, int, int]:
    """The plan, and the dtype and op of the byte that is reduced."""
    return group.plans.get(("barrier", 1, 0)) or group.barrier_plan(), DType.U8, Op.BOR


def of_message(group: Group, kind: str, peer: int, tag: int) -> Asked:
    """``kind``: "send" or "recv". ValueError if ``peer`` is not another rank of the group."""
    if not 0 <= peer < group.size or peer == group.rank:
        raise ValueError(f"cannot {kind}: {peer} is not another rank of a group of {group.size}")
    ends = (group.rank, peer) if kind == "send" else (peer, group.rank)
    plan = group.point_to_point(kind, peer, POINT_TO_POINT_CHUNK)
    return plan, {"extra": tag & 0xFFFFFFFF, "channel": group.channel(*ends, tag)}
