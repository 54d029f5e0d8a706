"""The tensors of an operation as flat memory: used where they lie, or copied.

Tensors that are not contiguous, lists of tensors that do not follow each other in memory, and inputs that overlap
with outputs are copied, here or when the operation is done; all others are used where they lie. What is copied is
first waited for, if an earlier operation needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from slipstream.comm.membership.group import Group
from slipstream.faces.torch_distributed import devices
from slipstream.faces.torch_distributed.devices.memory import TensorMemory
from slipstream.faces.torch_distributed.reduce_ops import premultiplied, prescale
from slipstream.faces.torch_tensors import await_tensor, check_writable, span
from slipstream.staging import process as staging
from slipstream.staging.calls import Ends

__all__ = ["Operands", "share_memory"]

Tensors = Sequence[torch.Tensor]
Finish = Callable[[], None]
"""Brings results from a copy to where the caller wants them."""


@dataclass(slots=True)  # not frozen: made for each operation
class Operands:
    """Makes flat memory of the tensors of one operation.

    ``group``, ``name`` and ``limit`` (seconds) are of the operation that may have to wait for earlier ones; ``ends``
    as in `staging.calls.Call`.
    """

    group: Group
    name: str
    limit: float
    ends: Ends | None = None

    def await_earlier(self, tensor: torch.Tensor, *, writes: bool) -> None:
        """Waits until no earlier operation needs the tensor, which is now read, or (``writes``) written to later."""
        if devices.for_tensor(tensor) is None:
            channel = 0 if self.ends is None else self.group.channel(*self.ends)
            await_tensor(self.group, self.name, tensor, writes=writes, channel=channel, timeout=self.limit)
        else:
            staging.settle(TensorMemory(tensor), self.group, self.ends, self.name, writes=writes)

    # ---- one tensor

    def readable(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of ``tensor`` as a flat tensor: itself where it can be read as it lies."""
        _check_dense(tensor)
        tensor = tensor.detach()
        if not _is_flat(tensor):
            self.await_earlier(tensor, writes=False)
            tensor = tensor.resolve_conj().resolve_neg().contiguous()
        return tensor.view(-1)

    def writable(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Finish | None]:
        """A flat tensor to write ``tensor``'s new values to, and what brings them there afterwards."""
        _check_dense(tensor)
        check_writable(tensor)
        tensor = tensor.detach()
        if _is_flat(tensor):
            return tensor.view(-1), None
        self.await_earlier(tensor, writes=True)
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        return flat, lambda: _copy(tensor, flat)

    def in_place(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Finish | None]:
        """As `writable`, with the values that ``tensor`` has now."""
        flat, finish = self.writable(tensor)
        if finish is not None:
            flat.view(tensor.shape).copy_(tensor.detach())
        return flat, finish

    def apart(self, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        """``src``, copied if it shares memory with ``dst``."""
        if src.data_ptr() < _end(dst) and dst.data_ptr() < _end(src):
            self.await_earlier(src, writes=False)
            return src.clone()
        return src

    def scaled(self, src: torch.Tensor, reduce_op: Any, as_it_is: bool) -> tuple[torch.Tensor, float]:
        """``src``, unless it goes in ``as_it_is`` with the prescale that it needs, or else `premultiplied`."""
        if as_it_is:
            return src, 1.0
        factor = prescale(reduce_op, src.dtype)
        if factor is not None:
            return src, factor
        self.await_earlier(src, writes=False)
        return premultiplied(src, reduce_op), 1.0

    # ---- lists of tensors

    def readable_list(self, tensors: Tensors) -> torch.Tensor:
        """The values of all ``tensors``, one after another, as a flat tensor."""
        together = _adjacent(tensors)
        if together is not None:
            return together
        for tensor in tensors:
            self.await_earlier(tensor, writes=False)
        return torch.cat([self.readable(t) for t in tensors])

    def writable_list(self, tensors: Tensors) -> tuple[torch.Tensor, Finish | None]:
        """A flat tensor to write the new values of all ``tensors`` to, and what brings them there afterwards."""
        together = _adjacent(tensors)
        if together is not None:
            return together, None
        for tensor in tensors:
            _check_dense(tensor)
            check_writable(tensor)
            self.await_earlier(tensor, writes=True)
        counts = [t.numel() for t in tensors]
        flat = torch.empty(sum(counts), dtype=tensors[0].dtype, device=tensors[0].device)

        def finish() -> None:
            for tensor, part in zip(tensors, torch.split(flat, counts), strict=True):
                _copy(tensor.detach(), part)

        return flat, finish


def share_memory(tensors: Tensors) -> bool:
    """Whether any two of the tensors may have memory in common: their spans overlap."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + span(tensor))
        for tensor in tensors
        if tensor.layout is torch.strided and tensor.numel()
    )
    return any(following[0] < one[1] for one, following in pairwise(spans))


def _is_flat(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _check_dense(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise ValueError(f"slipstream cannot communicate tensors of layout {tensor.layout} in this operation")


def _copy(target: torch.Tensor, flat: torch.Tensor) -> None:
    target.copy_(flat.view(target.shape))


def _end(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() + tensor.numel() * tensor.element_size()


def _adjacent(tensors: Tensors) -> torch.Tensor | None:
    """One flat tensor over all of them, if they follow each other in one memory."""
    if not all(_is_flat(t) and t.layout is torch.strided for t in tensors):
        return None
    filled = [t.detach() for t in tensors if t.numel()]
    if not filled:
        return None
    storage = filled[0].untyped_storage().data_ptr()
    for one, following in pairwise(filled):
        if _end(one) != following.data_ptr() or following.untyped_storage().data_ptr() != storage:
            return None
    total = sum(t.numel() for t in filled)
    return filled[0].as_strided((total,), (1,), filled[0].storage_offset())
