"""Tensors on accelerators, as staging sees them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from slipstream.faces.torch_tensors import shares_elements, span
from slipstream.staging.device import Copies, HostBuffer, Memory, Strip

__all__ = ["TensorMemory", "host_buffer"]


def host_buffer(tensor: torch.Tensor) -> HostBuffer:
    """A CPU tensor of bytes as staging takes it."""
    return HostBuffer(tensor, tensor.data_ptr(), tensor.numel())


class TensorMemory:
    """`slipstream.staging.device.Memory`: a strided tensor."""

    __slots__ = ("address", "nbytes", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        # `.data` counts versions for itself: autograd must not take what we write for a change made by the user
        self.tensor = tensor.data
        self.address = tensor.data_ptr()
        self.nbytes = span(tensor)

    def shares(self, other: Memory) -> bool:
        """Whether any element is in both."""
        return not isinstance(other, TensorMemory) or shares_elements(self.tensor, other.tensor)

    def views(self, strips: Sequence[Strip], buffer: HostBuffer) -> Copies:
        """(device view, host view) of each strip; the tensor is flat."""
        flat = self.tensor
        packed = buffer.array[: sum(s.rows * s.width for s in strips) * flat.element_size()].view(flat.dtype)
        ends = accumulate(s.rows * s.width for s in strips)
        return [
            (_strip(flat, s), packed[end - s.rows * s.width : end].view(s.rows, s.width))
            for s, end in zip(strips, ends, strict=True)
        ]


def _strip(flat: torch.Tensor, s: Strip) -> torch.Tensor:
    return flat.as_strided((s.rows, s.width), (s.step, 1), flat.storage_offset() + s.start)
