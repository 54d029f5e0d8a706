"""What the ranks compare of an operation, in words, and as data for ranks that have joined."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from slipstream.base.dtypes import WireType
from slipstream.comm.collectives.wires import wire_of_sum
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import EVERYONE, Request, Sum
from slipstream.comm.negotiation.negotiated import DONE, Pending
from slipstream.faces.horovod.handles import may_take_part
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.reduce_ops import Adasum, Average, Max, Min, Product, engine_op, op_name
from slipstream.faces.horovod.reduce_ops import Sum as SumOp
from slipstream.faces.torch.adasum import check_adasum
from slipstream.faces.torch.data_movement import (
    start_all_to_all,
    start_broadcast,
    start_grouped_all_gather,
)
from slipstream.faces.torch.reduction_collectives import (
    start_all_reduce,
    start_grouped_all_reduce,
    start_grouped_reduce_scatter,
)
from slipstream.faces.torch_tensors import DTYPES, check_dense, dtype_code, factor_for

__all__ = [
    "BARRIER",
    "broadcast_request",
    "grouped_request",
    "parameters_request",
    "rows_request",
    "shares_request",
    "sparse_request",
    "sum_request",
    "take_part",
]

BARRIER = Request("barrier", "", "")

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


@functools.lru_cache(_MOST_KEPT, typed=True)  # True is no op, though it equals one
def sum_request(
    name: str,
    dtype: torch.dtype,
    shape: torch.Size,
    device: str,
    op: int,
    prescale: float,
    postscale: float,
    wire: WireType,
    own: bool,
) -> Request:
    """The all-reduce of one tensor. What travels by a wire shares no buffer."""
    code = dtype_code(torch.empty(0, dtype=dtype, device="cpu"))
    _check_op(op, dtype)
    count = shape.numel()
    wire = _carried([(code, count * dtype.itemsize)], op, wire)
    facts = [_name(dtype), str(tuple(shape)), *_reduction(op, prescale, postscale), _by(wire), _on([device])]
    shared = None
    if op in (Average, SumOp) and dtype in _SHARING and not wire:
        factors = [float(factor_for(dtype, one)) for one in (prescale, postscale)]
        shared = Sum(code, engine_op(op), count, count * dtype.itemsize, *factors)
    form = [[[code, list(shape)]], op, prescale, postscale, int(wire), False]
    return _request("allreduce", name, facts, form, _SUM, sum=shared, own=own)


def grouped_request(
    name: str,
    tensors: Sequence[torch.Tensor],
    op: int,
    prescale: float,
    postscale: float,
    wire: WireType = WireType.EXACT,
) -> Request:
    """The all-reduce of several tensors."""
    wire = _carried(_sizes(tensors), op, wire)
    dtypes, *facts = _reduction_facts(tensors, op, prescale, postscale, wire)
    facts = [f"group of {dtypes}", *facts]
    form = [[_data(tensor) for tensor in tensors], op, prescale, postscale, int(wire), True]
    return _request("allreduce", name, facts, form, _SUM)


def shares_request(
    name: str,
    tensors: Sequence[torch.Tensor],
    op: int,
    prescale: float,
    postscale: float,
    wire: WireType = WireType.EXACT,
    own: bool = False,
) -> Request:
    """The reduce-scatter of each tensor."""
    engine_op(op)
    wire = _carried(_sizes(tensors), op, wire)
    facts = _reduction_facts(tensors, op, prescale, postscale, wire)
    form = [[_data(tensor) for tensor in tensors], op, prescale, postscale, int(wire)]
    return _request("reducescatter", name, facts, form, _SUM, own=own)


def broadcast_request(name: str, tensor: torch.Tensor, root_rank: int) -> Request:
    """A broadcast; without its root it is nothing."""
    facts = [_dtypes([tensor]), str(tuple(tensor.shape)), f"from rank {root_rank}", _on([tensor.device.type])]
    return _request("broadcast", name, facts, [_data(tensor), root_rank], _ROOTED, needs=root_rank)


def rows_request(kind: str, name: str, tensors: Sequence[torch.Tensor]) -> Request:
    """An operation to which ranks may bring different numbers of rows."""
    tails = [f"({', '.join(['*', *map(str, tensor.shape[1:])])})" for tensor in tensors]
    facts = [_dtypes(tensors), _several(tails), _on([tensor.device.type for tensor in tensors])]
    return _request(kind, name, facts, [[dtype_code(one), list(one.shape[1:])] for one in tensors], _ROWS)


def sparse_request(name: str, tensor: torch.Tensor, op: int) -> Request:
    """The sum of sparse tensors."""
    facts = [_name(tensor.dtype), str(tuple(tensor.shape)), f"op {op_name(op)}", _on([tensor.device.type])]
    dense = tensor.dense_dim()
    tail = list(tensor.shape[tensor.dim() - dense :])
    form = [[dtype_code(torch.empty(0, dtype=torch.int64, device="cpu")), [tensor.sparse_dim()]]]
    return _request("sparse_allreduce", name, facts, [*form, [dtype_code(tensor.values()), tail]], _SPARSE)


def parameters_request(root_rank: int) -> Request:
    """The broadcast of parameters, which the ranks compare by themselves."""
    facts = f"from rank {root_rank}"
    return Request(
        "broadcast_parameters", "", facts, needs=EVERYONE, labels="broadcast_parameters root ranks"
    )


def take_part(request: Request, group: Group) -> Pending:
    """Starts the part of a rank that has joined in what others have called.

    It brings zeros to sums and averages, what changes nothing to Min, Max and Product, and no rows elsewhere; what it
    receives is dropped.
    """
    if request.kind == BARRIER.kind:
        return DONE
    form: Any = json.loads(request.form)
    label, own = request.name or None, ProcessSet(group.ranks).on(group)
    if request.kind == "allreduce":
        shapes, op, prescale, postscale, wire, grouped = form
        tensors = [_nothing(code, shape, op) for code, shape in shapes]
        asked = op, prescale, postscale, own, WireType(wire)
        if grouped:
            return start_grouped_all_reduce(tensors, True, label, *asked)
        return start_all_reduce(tensors[0], True, label, *asked)
    if request.kind == "reducescatter":
        shapes, op, prescale, postscale, wire = form
        tensors = [_nothing(code, shape, op) for code, shape in shapes]
        return start_grouped_reduce_scatter(tensors, label, op, prescale, postscale, own, WireType(wire))
    if request.kind == "broadcast":
        (code, shape), root_rank = form
        return start_broadcast(_nothing(code, shape, SumOp), True, root_rank, label, own)
    rows = [torch.empty((0, *tail), dtype=DTYPES[code], device="cpu") for code, tail in form]
    if request.kind == "alltoall":
        return start_all_to_all(rows[0], [0] * own.group.size, label, own)
    return start_grouped_all_gather(rows, label, own)


may_take_part(
    ["allreduce", "reducescatter", "broadcast", "allgather", "alltoall", "sparse_allreduce", "barrier"],
    take_part,
)


def _nothing(code: int, shape: Sequence[int], op: int) -> torch.Tensor:
    """A tensor that does not change what the others reduce."""
    dtype = DTYPES[code]
    if op == Product:
        return torch.ones(shape, dtype=dtype, device="cpu")
    if op not in (Min, Max) or dtype.is_complex:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    if dtype == torch.bool:
        return torch.full(shape, op == Min, device="cpu")
    if dtype.is_floating_point:
        info: Any = torch.finfo(dtype)
        most = float("inf") if dtype not in (torch.float8_e4m3fn,) else info.max
        return torch.full(shape, most if op == Min else -most, dtype=torch.float32, device="cpu").to(dtype)
    info = torch.iinfo(dtype)
    return torch.full(shape, info.max if op == Min else info.min, dtype=dtype, device="cpu")


# What the parts of facts are called where they differ.
_SUM = (
    "data types",
    "{} tensor shapes",
    "reduce operations",
    "prescale or postscale factors",
    "wire types|exact",
    "{} devices",
)
_ROOTED = ("data types", "{} tensor shapes", "{} root ranks", "{} devices")
_ROWS = ("data types", "{} tensor shapes", "{} devices")
_SPARSE = ("data types", "{} tensor shapes", "reduce operations", "{} devices")


def _request(
    kind: str, name: str, facts: Sequence[str], form: list[Any], labels: Sequence[str], **fields: Any
) -> Request:
    text = json.dumps(form, separators=(",", ":"))
    return Request(
        kind, name, "; ".join(facts), text, labels="; ".join(labels).format(*[kind] * len(labels)), **fields
    )


def _data(tensor: torch.Tensor) -> list[Any]:
    return [dtype_code(tensor), list(tensor.shape)]


def _reduction_facts(
    tensors: Sequence[torch.Tensor], op: int, prescale: float, postscale: float, wire: WireType
) -> list[str]:
    for tensor in tensors:
        _check_op(op, tensor.dtype)
    dtypes = _dtypes(tensors)
    shapes = _several([str(tuple(tensor.shape)) for tensor in tensors])
    devices = _on([tensor.device.type for tensor in tensors])
    return [dtypes, shapes, *_reduction(op, prescale, postscale), _by(wire), devices]


def _sizes(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Of each the code of its dtype, and its bytes."""
    return [(dtype_code(one), one.numel() * one.element_size()) for one in tensors]


def _carried(sizes: Iterable[tuple[int, int]], op: int, wire: WireType) -> WireType:
    """By which wire some tensors of these `_sizes` travel: none, if what is asked for acts on none of them.

    It may be one in a group of one host, too, where none acts: so a program that differs in it learns of it on any
    machine.
    """
    acts = wire and op != Adasum and any(wire_of_sum(wire, *one, engine_op(op)) for one in sizes)
    return wire if acts else WireType.EXACT


def _by(wire: WireType) -> str:
    return f"{wire.name.lower()} between hosts" if wire else ""


def _check_op(op: int, dtype: torch.dtype) -> None:
    if op == Adasum:
        check_adasum(dtype)
    else:
        engine_op(op)
    if op in (Min, Max) and dtype.is_complex:
        raise ValueError(f"op {op_name(op)} is not defined for {_name(dtype)}")


def _reduction(op: int, prescale: float, postscale: float) -> list[str]:
    factors = "" if prescale == postscale == 1 else f"factors {prescale!r} and {postscale!r}"
    return [f"op {op_name(op)}", factors]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtypes(tensors: Sequence[torch.Tensor]) -> str:
    for tensor in tensors:
        check_dense(tensor)
        dtype_code(tensor)
    return _several([_name(tensor.dtype) for tensor in tensors])


def _several(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"


def _on(devices: Sequence[str]) -> str:
    """Where the tensors lie, if they do not lie where most do."""
    return "" if set(devices) <= {"cpu"} else f"on {_several(devices)}"
