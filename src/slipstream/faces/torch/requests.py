"""What the ranks compare of an operation with a name, in words, and as data for ranks that have joined."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import torch

from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request, Sum
from slipstream.comm.negotiation.negotiated import Pending
from slipstream.faces.horovod.handles import may_take_part
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.reduce_ops import Adasum, Average, Max, Min, Product, engine_op, op_name
from slipstream.faces.horovod.reduce_ops import Sum as SumOp
from slipstream.faces.torch.adasum import check_adasum
from slipstream.faces.torch.data_movement import start_all_gather, start_all_to_all, start_broadcast
from slipstream.faces.torch.reduction_collectives import (
    start_all_reduce,
    start_grouped_all_reduce,
    start_reduce_scatter,
)
from slipstream.faces.torch_tensors import DTYPES, check_dense, dtype_code, factor_for

__all__ = [
    "broadcast_request",
    "grouped_request",
    "rows_request",
    "shares_request",
    "sum_request",
    "take_part",
]

_MOST_KEPT = 4096
# What shares a buffer with others; the rest travels alone.
_SHARING = frozenset(
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.int64,
    ]
)


@functools.lru_cache(_MOST_KEPT)
def sum_request(
    name: str, dtype: torch.dtype, shape: torch.Size, op: int, prescale: float, postscale: float
) -> Request:
    """The all-reduce of one tensor."""
    like = torch.empty(0, dtype=dtype)
    code = dtype_code(like)
    facts = _reduction([_words(like, shape)], [dtype], op, prescale, postscale)
    shared = None
    if op in (Average, SumOp) and dtype in _SHARING:
        count = shape.numel()
        factors = [float(factor_for(dtype, one)) for one in (prescale, postscale)]
        shared = Sum(code, engine_op(op), count, count * dtype.itemsize, *factors)
    form = [[[code, list(shape)]], op, prescale, postscale, False]
    return Request("allreduce", name, facts, _text(form), sum=shared)


def grouped_request(
    name: str, tensors: Sequence[torch.Tensor], op: int, prescale: float, postscale: float
) -> Request:
    """The all-reduce of several tensors."""
    form = [[_data(tensor) for tensor in tensors], op, prescale, postscale, True]
    words = [_whole(tensor) for tensor in tensors]
    facts = _reduction(words, [tensor.dtype for tensor in tensors], op, prescale, postscale)
    return Request("allreduce", name, facts, _text(form))


def shares_request(name: str, tensor: torch.Tensor, op: int, prescale: float, postscale: float) -> Request:
    """A reduce-scatter."""
    engine_op(op)
    facts = _reduction([_whole(tensor)], [tensor.dtype], op, prescale, postscale)
    return Request("reducescatter", name, facts, _text([_data(tensor), op, prescale, postscale]))


def broadcast_request(name: str, tensor: torch.Tensor, root_rank: int) -> Request:
    """A broadcast; without its root it is nothing."""
    facts = f"{_whole(tensor)} from rank {root_rank}"
    return Request("broadcast", name, facts, _text([_data(tensor), root_rank]), needs=root_rank)


def rows_request(kind: str, name: str, tensor: torch.Tensor) -> Request:
    """An operation to which ranks may bring different numbers of rows."""
    check_dense(tensor)
    facts = f"{_dtype(tensor)} ({', '.join(['*', *map(str, tensor.shape[1:])])})"
    return Request(kind, name, facts, _text([dtype_code(tensor), list(tensor.shape[1:])]))


def take_part(request: Request, group: Group) -> Pending:
    """Starts the part of a rank that has joined in what others have called.

    It brings zeros to sums and averages, what changes nothing to Min, Max and Product, and no rows elsewhere; what it
    receives is dropped.
    """
    form: Any = json.loads(request.form)
    label, own = request.name, ProcessSet(group.ranks).on(group)
    if request.kind == "allreduce":
        shapes, op, prescale, postscale, grouped = form
        tensors = [_nothing(code, shape, op) for code, shape in shapes]
        if grouped:
            return start_grouped_all_reduce(tensors, True, label, op, prescale, postscale, own)
        return start_all_reduce(tensors[0], True, label, op, prescale, postscale, own)
    if request.kind == "reducescatter":
        (code, shape), op, prescale, postscale = form
        return start_reduce_scatter(_nothing(code, shape, op), label, op, prescale, postscale, own)
    if request.kind == "broadcast":
        (code, shape), root_rank = form
        return start_broadcast(_nothing(code, shape, SumOp), True, root_rank, label, own)
    code, tail = form
    rows = torch.empty((0, *tail), dtype=DTYPES[code])
    if request.kind == "allgather":
        return start_all_gather(rows, label, own)
    return start_all_to_all(rows, [0] * own.group.size, label, own)


may_take_part(["allreduce", "reducescatter", "broadcast", "allgather", "alltoall"], take_part)


def _nothing(code: int, shape: Sequence[int], op: int) -> torch.Tensor:
    """A tensor that does not change what the others reduce."""
    dtype = DTYPES[code]
    if op == Product:
        return torch.ones(shape, dtype=dtype)
    if op not in (Min, Max) or dtype.is_complex:
        return torch.zeros(shape, dtype=dtype)
    if dtype == torch.bool:
        return torch.full(shape, op == Min)
    if dtype.is_floating_point:
        info: Any = torch.finfo(dtype)
        most = float("inf") if dtype not in (torch.float8_e4m3fn,) else info.max
        return torch.full(shape, most if op == Min else -most, dtype=torch.float32).to(dtype)
    info = torch.iinfo(dtype)
    return torch.full(shape, info.max if op == Min else info.min, dtype=dtype)


def _text(form: list[Any]) -> str:
    return json.dumps(form, separators=(",", ":"))


def _data(tensor: torch.Tensor) -> list[Any]:
    return [dtype_code(tensor), list(tensor.shape)]


def _reduction(
    words: Sequence[str], dtypes: Sequence[torch.dtype], op: int, prescale: float, postscale: float
) -> str:
    if op != Adasum:
        engine_op(op)
    for dtype in dtypes:
        if op == Adasum:
            check_adasum(dtype)
        if op in (Min, Max) and dtype.is_complex:
            raise ValueError(f"op {op_name(op)} is not defined for {_name(dtype)}")
    factors = "" if prescale == postscale == 1 else f", factors {prescale!r} and {postscale!r}"
    return f"{'; '.join(words)}, op {op_name(op)}{factors}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(tensor: torch.Tensor) -> str:
    dtype_code(tensor)
    return _name(tensor.dtype)


def _words(tensor: torch.Tensor, shape: Sequence[int]) -> str:
    return f"{_dtype(tensor)} {tuple(shape)}"


def _whole(tensor: torch.Tensor) -> str:
    check_dense(tensor)
    return _words(tensor, tensor.shape)
