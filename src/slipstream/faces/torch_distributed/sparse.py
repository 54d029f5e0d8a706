"""All-reduce of sparse COO tensors: gathers indices and values, and adds those of equal place."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.comm.collectives.interruption import Together
from slipstream.comm.membership.group import Group
from slipstream.faces.torch_distributed import operations
from slipstream.faces.torch_distributed.operations import Operation

__all__ = ["all_reduce"]

_c10d: Any = torch._C._distributed_c10d

_Kind = _c10d.ReduceOp.RedOpType


def all_reduce(group: Group, tensor: torch.Tensor, reduce_op: Any, limit: float) -> None:
    """``tensor`` (COO, any device, the same shape on all ranks) = the sum or average of every rank's, coalesced.

    Returns when it is done. ValueError for other layouts and reductions.
    """
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"slipstream cannot reduce tensors of layout {tensor.layout}")
    if reduce_op.op not in (_Kind.SUM, _Kind.AVG):
        raise ValueError("sparse tensors can be reduced with SUM and AVG only")
    own = tensor.detach().coalesce()
    found = torch.tensor([own._nnz()], device="cpu")
    counts = torch.empty(group.size, dtype=torch.int64, device="cpu")
    with Together(group, "all_reduce of a sparse tensor"):
        _run(operations.all_gather(group, [counts], found, limit))
        indices = _gathered(group, own.indices().t().cpu(), counts, limit)
        values = _gathered(group, own.values().cpu(), counts, limit)
    if reduce_op.op == _Kind.AVG:
        values = values / group.size
    total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
    with torch.no_grad():
        tensor.copy_(total.to(tensor.device))


def _gathered(group: Group, rows: torch.Tensor, counts: torch.Tensor, limit: float) -> torch.Tensor:
    outputs = [rows.new_empty((n, *rows.shape[1:])) for n in counts.tolist()]
    _run(operations.all_gather(group, outputs, rows, limit))
    return torch.cat(outputs)


def _run(operation: Operation) -> None:
    assert operation.src is not None
    assert operation.dst is not None
    addresses = operation.src.data_ptr(), operation.dst.data_ptr()
    operation.call.issue(
        *addresses, operation.call.sent, operation.call.received, (operation.src, operation.dst), True
    )
    if operation.finish is not None:
        operation.finish()
