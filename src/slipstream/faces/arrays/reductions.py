"""All-reduce and reduce-scatter of arrays, as they start when all ranks have called them.

``label``: what errors call an operation. ``wire``: what large float32 sums and averages travel as between hosts.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from slipstream._core import address_of
from slipstream.base.dtypes import DType, WireType, name_of
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.adasum import Vectors
from slipstream.comm.collectives.adasum_line import start_adasum
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.collectives.wires import wire_of_sum
from slipstream.faces.arrays.operands import Array, code_of, factor_for, new_array
from slipstream.faces.horovod.handles import Grouped, PendingResult
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.reduce_ops import Adasum, engine_op

__all__ = [
    "start_all_reduce",
    "start_grouped_all_reduce",
    "start_grouped_reduce_scatter",
    "start_reduce_scatter",
]

# Arrays of a grouped operation up to this size travel together: below it the price is in the messages.
PACK_BYTES = 128 << 10
_MOST_SHAPES = 200  # letters of their text


def start_all_reduce(
    array: Array,
    label: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
    sync: bool = False,
    out: Array | None = None,
) -> PendingResult:
    """Starts (with ``sync``: runs) an all-reduce; the result is a new array of its shape, or ``out``."""
    code = code_of(array)
    if op == Adasum:
        one = _start_adasum([array], label or "allreduce", prescale, postscale, process_set)
        one.result = one.result[0]
        return one
    result = new_array(array.shape, array.dtype) if out is None else out
    chosen = engine_op(op)
    work = addresses.all_reduce(
        process_set.group,
        address_of(array),
        address_of(result),
        array.size,
        code,
        chosen,
        name=label,
        shape=array.shape,
        prescale=factor_for(code, prescale),
        postscale=factor_for(code, postscale),
        wire=wire and wire_of_sum(wire, code, array.nbytes, chosen),
        keep=(array, result),
        sync=sync,
    )
    return PendingResult(work, result)


def start_grouped_all_reduce(
    arrays: Sequence[Array],
    label: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
) -> Grouped:
    """Starts an all-reduce of several arrays; the result is the list of theirs.

    Small ones of one dtype travel as one message. How they are packed depends on shapes, dtypes and the wire alone, so
    all ranks agree about it.
    """
    if op == Adasum and arrays:
        return _start_adasum_of_each(arrays, label or "grouped_allreduce", prescale, postscale, process_set)
    results: list[Any] = [None] * len(arrays)
    parts: list[PendingResult] = []
    with Together(process_set.group, "grouped_allreduce"):
        for pack in _packs(arrays, engine_op(op), wire):
            chosen = [arrays[index] for index in pack]
            if len(pack) == 1:
                part = start_all_reduce(chosen[0], None, op, prescale, postscale, process_set, wire)
                results[pack[0]] = part.result
            else:
                flat, views = _side_by_side(chosen)
                text = (
                    f"{label or 'grouped_allreduce'} of shapes {_listed([_by(one.shape) for one in chosen])}"
                )
                part = start_all_reduce(flat, text, op, prescale, postscale, process_set, out=flat)
                for index, view in zip(pack, views, strict=True):
                    results[index] = view
            parts.append(part)
    return Grouped(parts, lambda _: results)


def _packs(arrays: Sequence[Array], op: int, wire: WireType) -> list[list[int]]:
    """The numbers of those that travel together: small ones of a dtype. Large ones travel alone, as wires do."""
    packs: dict[Any, list[int]] = {}
    for index, one in enumerate(arrays):
        code = code_of(one)
        small = one.nbytes <= PACK_BYTES and not wire_of_sum(wire, code, one.nbytes, op)
        packs.setdefault(code if small else (code, index), []).append(index)
    return list(packs.values())


def _side_by_side(arrays: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Copies of arrays of one dtype in one flat array, and its parts in their shapes."""
    bounds = list(pairwise(accumulate((one.size for one in arrays), initial=0)))
    flat = new_array((bounds[-1][1],), arrays[0].dtype)
    views = [flat[low:high].reshape(one.shape) for one, (low, high) in zip(arrays, bounds, strict=True)]
    for view, one in zip(views, arrays, strict=True):
        view[...] = one
    return flat, views


def _start_adasum_of_each(
    arrays: Sequence[Array], label: str, prescale: float, postscale: float, process_set: ProcessSet
) -> Grouped:
    numbers: dict[DType, list[int]] = {}
    for number, one in enumerate(arrays):
        numbers.setdefault(code_of(one), []).append(number)
    with Together(process_set.group, "grouped_allreduce"):
        parts = [
            _start_adasum([arrays[i] for i in chosen], label, prescale, postscale, process_set)
            for chosen in numbers.values()
        ]
    places = [number for chosen in numbers.values() for number in chosen]

    def collect(results: list[list[Array]]) -> list[Array]:
        found = dict(zip(places, (one for result in results for one in result), strict=True))
        return [found[number] for number in range(len(arrays))]

    return Grouped(parts, collect)


def _start_adasum(
    arrays: Sequence[Array], label: str, prescale: float, postscale: float, process_set: ProcessSet
) -> PendingResult:
    """Arrays of one dtype, which lie side by side while they are reduced."""
    flat, views = _side_by_side(arrays)
    code = code_of(flat)
    if prescale != 1.0:
        flat *= flat.dtype.type(prescale)
    vectors = Vectors(flat.view(np.uint8), code, tuple(one.size for one in arrays))
    shapes = _listed([f"{name_of(code)} {one.shape}" for one in arrays])
    text = f"{label}, Adasum of {shapes}, factors {prescale!r} and {postscale!r}"
    work = start_adasum(process_set.group, vectors, text)

    def finish() -> None:
        flat.__imul__(flat.dtype.type(postscale))

    return PendingResult(work, views, None if postscale == 1.0 else finish)


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _listed(words: Sequence[str]) -> str:
    text = ", ".join(words)
    if len(text) > _MOST_SHAPES:
        text = f"{text[:_MOST_SHAPES]}... ({len(words)} tensors, digest {zlib.crc32(text.encode()):08x})"
    return text


def start_reduce_scatter(
    array: Array,
    label: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
    sync: bool = False,
) -> PendingResult:
    """Starts (with ``sync``: runs) a reduce-scatter along dim 0; the result is this rank's rows.

    The first ranks get one row more where the rows do not divide evenly.
    """
    group, code, chosen = process_set.group, code_of(array), engine_op(op)
    least, more = divmod(array.shape[0], group.size)
    rows = [least + (number < more) for number in range(group.size)]
    width = prod(array.shape[1:])
    result = new_array((rows[group.rank], *array.shape[1:]), array.dtype)
    work = addresses.reduce_scatter(
        group,
        address_of(array),
        address_of(result),
        [count * width for count in rows],
        code,
        chosen,
        name=label,
        shape=array.shape,
        prescale=factor_for(code, prescale),
        postscale=factor_for(code, postscale),
        wire=wire and wire_of_sum(wire, code, array.nbytes, chosen),
        keep=(array, result),
        sync=sync,
    )
    return PendingResult(work, result)


def start_grouped_reduce_scatter(
    arrays: Sequence[Array],
    label: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    wire: WireType = WireType.EXACT,
) -> Grouped:
    """Starts a reduce-scatter of each array; the result is the list of theirs."""
    with Together(process_set.group, "grouped_reducescatter"):
        return Grouped(
            [start_reduce_scatter(one, label, op, prescale, postscale, process_set, wire) for one in arrays]
        )
