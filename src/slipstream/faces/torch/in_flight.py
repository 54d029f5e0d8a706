"""The memory of tensors that operations work on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.faces.torch_tensors import shares_elements, span

__all__ = ["Tensors"]


class Tensors:
    """The tensors that an operation reads. ``writes``: and writes."""

    __slots__ = ("_spans", "_writes")

    def __init__(self, tensors: Sequence[torch.Tensor], writes: bool) -> None:
        self._spans = [
            (one.data_ptr(), one.data_ptr() + span(one), one)
            for one in tensors
            if one.layout is torch.strided
        ]
        self._writes = writes

    def meets(self, other: Tensors) -> bool:
        """Whether the two share memory, and one of them writes it."""
        return (self._writes or other._writes) and any(
            begin < other_end and other_begin < end and shares_elements(mine, theirs)
            for begin, end, mine in self._spans
            for other_begin, other_end, theirs in other._spans
        )
