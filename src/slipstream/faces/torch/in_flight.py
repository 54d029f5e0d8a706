"""The memory of tensors that operations work on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.faces.torch_tensors import check_writable, shares_elements, span

__all__ = ["Tensors"]


class Tensors:
    """The dense tensors that an operation reads. ``writes``: and writes; ValueError for one that cannot be written."""

    __slots__ = ("_tensors", "_writes", "spans")

    def __init__(self, tensors: Sequence[torch.Tensor], writes: bool) -> None:
        self._tensors = [one for one in tensors if one.layout is torch.strided]
        self._writes = writes
        for one in self._tensors if writes else ():
            check_writable(one)
        self.spans = [(one.data_ptr(), one.data_ptr() + span(one)) for one in self._tensors]

    def meets(self, other: Tensors) -> bool:
        """Whether the two share memory, and one of them writes it."""
        return (self._writes or other._writes) and any(
            shares_elements(mine, theirs) for mine in self._tensors for theirs in other._tensors
        )
