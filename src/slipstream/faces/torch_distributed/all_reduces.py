"""The all-reduces of a group: what DDP calls most, and so the shortest way for a plain tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.copies_back import OPEN
from slipstream.faces.torch_distributed import operations, sparse
from slipstream.faces.torch_distributed.operands import Operands, share_memory
from slipstream.faces.torch_distributed.reduce_ops import reduction
from slipstream.faces.torch_distributed.starting import OperationStarter
from slipstream.faces.torch_distributed.works import FinishedWork, PendingWork
from slipstream.faces.torch_tensors import is_plain

__all__ = ["AllReduces"]

_TINY = 64  # elements of all-reduces whose works are kept for a while


class AllReduces:
    """Reduces tensors in place, each in the shortest way it allows: dense on the CPU, sparse, on an accelerator."""

    def __init__(self, starter: OperationStarter) -> None:
        self._starter = starter
        # DDP's Join hands a work to C++ that outlives its Python object, and then waits on it in vain
        self._recent: deque[Any] = deque(maxlen=64)

    def of_one(self, tensor: torch.Tensor, opts: Any) -> Any:
        """Starts the reduction of ``tensor``; ``opts``: c10d's AllreduceOptions."""
        if not is_plain(tensor):
            return self._of_any(tensor, opts)
        code, op, as_it_is = reduction(opts.reduceOp, tensor.dtype)
        if not as_it_is:
            return self._of_any(tensor, opts)
        starter = self._starter
        address, count = tensor.data_ptr(), tensor.numel()
        wire = starter.wire.of_sum(count, tensor.dtype, op)
        sync = starter.is_synchronous(opts)
        limit = starter.limit if starter.alone else starter.limit_of(opts)
        quick = starter.members.quick
        if sync and not wire and not OPEN and quick.all_reduce(address, count, code, op, tensor, limit):
            return FinishedWork([tensor], True)
        running = addresses.all_reduce(
            starter.members,
            address,
            address,
            count,
            code,
            op,
            wire=wire,
            keep=tensor,
            sync=sync,
            timeout=limit,
        )
        if sync:
            return FinishedWork([tensor], True)
        work = PendingWork(running, [tensor])
        if count <= _TINY:
            self._recent.append(work)
        return starter.started(work)

    def of_several(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        """Starts the reduction of each tensor; one Work for all."""
        if len(tensors) == 1:
            return self._of_any(tensors[0], opts)
        if share_memory(tensors):
            return self._of_copies(tensors, opts)
        return self._of_separate(tensors, opts)

    def _of_any(self, tensor: torch.Tensor, opts: Any) -> Any:
        if tensor.layout is torch.strided:
            return self._of_separate([tensor], opts)
        starter = self._starter
        sparse.all_reduce(starter.members, tensor, opts.reduceOp, starter.limit_of(opts))
        return starter.started(FinishedWork([tensor]))

    def _of_separate(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        starter = self._starter
        limit = starter.limit_of(opts)
        ready = [
            operations.all_reduce(starter.group_for(t), t, opts.reduceOp, limit, starter.wire)
            for t in tensors
        ]
        return starter.start_all(ready, opts)

    def _of_copies(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        """For tensors that share memory: each is reduced as it was before the call. Waits, also if it need not."""
        starter = self._starter
        for tensor in tensors:
            operands = Operands(starter.group_for(tensor), "all_reduce", starter.limit_of(opts))
            operands.await_earlier(tensor, writes=True)
        copies = [tensor.detach().clone() for tensor in tensors]
        with starter.outside_batch():
            self._of_separate(copies, opts).wait()
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.detach().copy_(copy)
        return starter.started(FinishedWork(list(tensors)))
