"""What the ranks compare of an operation on arrays, in words, and as data for ranks that have joined."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from math import prod
from typing import Any

from slipstream.base.dtypes import DType, WireType, itemsize, name_of
from slipstream.comm.collectives.adasum import DTYPES as ADASUM_DTYPES
from slipstream.comm.collectives.wires import wire_of_sum
from slipstream.comm.negotiation.agreement import Request, Sum
from slipstream.faces.arrays.operands import Array, code_of, factor_for
from slipstream.faces.horovod.reduce_ops import Adasum, Average, Max, Min, engine_op, op_name
from slipstream.faces.horovod.reduce_ops import Sum as SumOp

__all__ = [
    "BARRIER",
    "KIND_OF_FORM",
    "broadcast_request",
    "grouped_request",
    "rows_request",
    "shares_request",
    "sum_request",
]

BARRIER = Request("barrier", "", "")
KIND_OF_FORM = "arrays"
"""What forms begin with, so that this face takes part in them, and not another one that is loaded too."""

_MOST_KEPT = 4096
# What shares a buffer with others; the rest travels alone.
_SHARING = frozenset((DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I64))
_COMPLEX = (DType.C64, DType.C128)
# What the parts of facts are called where they differ.
_SUM = (
    "data types",
    "{} tensor shapes",
    "reduce operations",
    "prescale or postscale factors",
    "wire types|exact",
)
_ROOTED = ("data types", "{} tensor shapes", "{} root ranks")
_ROWS = ("data types", "{} tensor shapes")


@functools.lru_cache(_MOST_KEPT, typed=True)  # True is no op, though it equals one
def sum_request(
    name: str,
    code: DType,
    shape: tuple[int, ...],
    op: int,
    prescale: float,
    postscale: float,
    wire: WireType,
    own: bool,
) -> Request:
    """The all-reduce of one array. What travels by a wire shares no buffer."""
    nbytes = _nbytes(code, shape)
    wire = _carried([(code, nbytes)], op, wire)
    facts = _facts([code], [shape], op, prescale, postscale, wire)
    shared = None
    if op in (Average, SumOp) and code in _SHARING and not wire:
        factors = factor_for(code, prescale), factor_for(code, postscale)
        shared = Sum(int(code), engine_op(op), prod(shape), nbytes, *factors)
    form = [[[int(code), list(shape)]], op, prescale, postscale, int(wire), False]
    return _request("allreduce", name, facts, form, _SUM, sum=shared, own=own)


def grouped_request(
    name: str, arrays: Sequence[Array], op: int, prescale: float, postscale: float, wire: WireType
) -> Request:
    """The all-reduce of several arrays."""
    wire = _carried([(code_of(one), one.nbytes) for one in arrays], op, wire)
    dtypes, *facts = _facts(*_kinds(arrays), op, prescale, postscale, wire)
    form = [[_data(one) for one in arrays], op, prescale, postscale, int(wire), True]
    return _request("allreduce", name, [f"group of {dtypes}", *facts], form, _SUM)


def shares_request(
    name: str,
    arrays: Sequence[Array],
    op: int,
    prescale: float,
    postscale: float,
    wire: WireType,
    own: bool = False,
) -> Request:
    """The reduce-scatter of each array."""
    engine_op(op)
    wire = _carried([(code_of(one), one.nbytes) for one in arrays], op, wire)
    facts = _facts(*_kinds(arrays), op, prescale, postscale, wire)
    form = [[_data(one) for one in arrays], op, prescale, postscale, int(wire)]
    return _request("reducescatter", name, facts, form, _SUM, own=own)


def broadcast_request(name: str, arrays: Sequence[Array], root_rank: int) -> Request:
    """The broadcast of each array; without its root it is nothing."""
    codes, shapes = _kinds(arrays)
    facts = [_names(codes), _several([str(shape) for shape in shapes]), f"from rank {root_rank}"]
    form = [[_data(one) for one in arrays], root_rank]
    return _request("broadcast", name, facts, form, _ROOTED, needs=root_rank)


def rows_request(kind: str, name: str, arrays: Sequence[Array]) -> Request:
    """An operation to which ranks may bring different numbers of rows."""
    codes, shapes = _kinds(arrays)
    tails = [f"({', '.join(['*', *map(str, shape[1:])])})" for shape in shapes]
    form = [[int(code), list(shape[1:])] for code, shape in zip(codes, shapes, strict=True)]
    return _request(kind, name, [_names(codes), _several(tails)], form, _ROWS)


def _request(
    kind: str, name: str, facts: Sequence[str], form: list[Any], labels: Sequence[str], **fields: Any
) -> Request:
    text = f"{KIND_OF_FORM} {json.dumps(form, separators=(',', ':'))}"
    told = "; ".join(labels).format(*[kind] * len(labels))
    return Request(kind, name, "; ".join(facts), text, labels=told, **fields)


def _data(array: Array) -> list[Any]:
    return [int(code_of(array)), list(array.shape)]


def _nbytes(code: int, shape: Sequence[int]) -> int:
    return prod(shape) * itemsize(code)


def _kinds(arrays: Sequence[Array]) -> tuple[list[DType], list[tuple[int, ...]]]:
    return [code_of(one) for one in arrays], [one.shape for one in arrays]


def _facts(
    codes: Sequence[DType],
    shapes: Sequence[tuple[int, ...]],
    op: int,
    prescale: float,
    postscale: float,
    wire: WireType,
) -> list[str]:
    for code in codes:
        _check_op(op, code)
    factors = "" if prescale == postscale == 1 else f"factors {prescale!r} and {postscale!r}"
    by = f"{wire.name.lower()} between hosts" if wire else ""
    return [_names(codes), _several([str(shape) for shape in shapes]), f"op {op_name(op)}", factors, by]


def _check_op(op: int, code: DType) -> None:
    if op == Adasum:
        if code not in ADASUM_DTYPES:
            raise ValueError(
                f"Adasum takes tensors of float64, float32, float16 and bfloat16, not {name_of(code)}: use op=hvd.Sum"
            )
    else:
        engine_op(op)
    if op in (Min, Max) and code in _COMPLEX:
        raise ValueError(f"op {op_name(op)} is not defined for {name_of(code)}")


def _carried(sizes: Sequence[tuple[int, int]], op: int, wire: WireType) -> WireType:
    """By which wire some of these (code, bytes) travel: none, if what is asked for acts on none of them."""
    acts = wire and op != Adasum and any(wire_of_sum(wire, *one, engine_op(op)) for one in sizes)
    return wire if acts else WireType.EXACT


def _names(codes: Sequence[DType]) -> str:
    return _several([name_of(code) for code in codes])


def _several(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"
