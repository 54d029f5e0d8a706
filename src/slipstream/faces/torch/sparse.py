"""Sums of sparse tensors: their indices and values are gathered, and values with equal indices are added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.reduce_ops import Average, Sum

__all__ = ["sparse_sum"]


def sparse_sum(
    tensor: torch.Tensor,
    op: int,
    process_set: ProcessSet,
    gather: Callable[[torch.Tensor, Sequence[torch.Tensor]], Any],
) -> Callable[[], torch.Tensor]:
    """Starts the Sum or Average of a sparse COO tensor; returns a function that waits for the sparse result.

    ``gather``: starts to gather the second, the rows of indices and of values, of the first, the tensor without
    indices that come twice. ValueError for another ``op``.
    """
    if op not in (Sum, Average):
        raise ValueError("sparse tensors can be reduced with Sum and Average only")
    sparse = tensor.detach().coalesce()
    started = gather(sparse, [sparse.indices().t(), sparse.values()])
    shape = sparse.shape
    divisor = process_set.group.size if op == Average else 1

    def finish() -> torch.Tensor:
        indices, values = started.wait()
        if divisor > 1:
            values = values / divisor
        return torch.sparse_coo_tensor(indices.t(), values, shape, device=values.device).coalesce()

    return finish
