"""A tensor's part of a buffer that several sums share."""

from __future__ import annotations

from ctypes import memmove

import torch

from slipstream.comm.collectives.copies_back import OPEN
from slipstream.comm.membership.group import Group
from slipstream.faces.torch_tensors import await_tensor, is_plain, new_tensor, plain_copy, write_back

__all__ = ["SumPart"]


class SumPart:
    """The tensor of an all-reduce. ``in_place``: it takes the sum, too."""

    __slots__ = ("_in_place", "_tensor")

    def __init__(self, tensor: torch.Tensor, in_place: bool) -> None:
        self._tensor = tensor
        self._in_place = in_place

    def pack(self, group: Group, address: int) -> None:
        """Copies the input there, once no earlier operation works on it any more."""
        tensor = self._tensor
        if OPEN or not group.session.quiet():
            await_tensor(group, "allreduce", tensor, writes=self._in_place)
        plain = tensor if is_plain(tensor) else plain_copy(tensor)
        memmove(address, plain.data_ptr(), plain.nbytes)

    def unpack(self, address: int) -> torch.Tensor:
        """Takes the sum from there."""
        tensor = self._tensor
        if self._in_place and is_plain(tensor):
            memmove(tensor.data_ptr(), address, tensor.nbytes)
            return tensor
        result = new_tensor(tensor.shape, tensor.dtype)
        memmove(result.data_ptr(), address, result.nbytes)
        if self._in_place:
            write_back(tensor, result)
            return tensor
        return result.to(tensor.device)
