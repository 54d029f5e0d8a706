"""Sums of float32 tensors that travel in fewer bits: `SLIPSTREAM_WIRE`, `slipstream run --wire bf16`.

A tensor is cast to memory of the wire's type, that is reduced, and the result is cast back. All ranks get the same
bits. What is small, what is not float32, and what is no sum or average travels as it is; so does everything
within a host, where fewer bits gain nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slipstream import _core
from slipstream.base.dtypes import BLOCK_NUMBERS, DType, Op, itemsize
from slipstream.comm.membership.group import Group

__all__ = ["LEAST_BYTES", "OnWire", "Wire", "wire_of"]

LEAST_BYTES = 64 << 10  # of a tensor
_SUMS = int(Op.SUM), int(Op.AVG)
# Contributions of n ranks are divided by n, and bounded: then no sum of them is beyond float16's 65504.
_MOST_F16 = 65000.0


@dataclass(frozen=True)
class OnWire:
    """Memory (bytes) to reduce from and to, with the engine's ``op``; then ``decode`` casts the result.

    A signal's handler may break ``decode`` off; it is called again then. So the memory is this operation's alone.
    """

    src: torch.Tensor
    dst: torch.Tensor
    op: int
    cast_from: str  # which tensor that stands for, in words, and what is asked for
    decode: Callable[[], None]


class Wire:
    """What float32 tensors travel as in a group of ``size`` ranks: ``code`` is the dtype's."""

    def __init__(self, code: int, size: int) -> None:
        self.code = code
        self._size = size

    def takes(self, tensor: torch.Tensor, op: int) -> bool:
        """Whether a reduction with the engine's ``op`` goes this way: the same on all ranks that call it alike."""
        return (
            tensor.dtype is torch.float32
            and op in _SUMS
            and tensor.numel() * 4 >= LEAST_BYTES
            and tensor.is_cpu
        )

    def takes_blocks(self, tensor: torch.Tensor, op: int, counts: Sequence[int]) -> bool:
        """The same of a tensor that is cut into blocks of so many elements."""
        return self.takes(tensor, op) and (
            self.code != DType.Q8 or not any(count % BLOCK_NUMBERS for count in counts)
        )

    def counts(self, counts: Sequence[int]) -> list[int]:
        """Elements of the wire's dtype that stand for so many numbers each."""
        return [-(-count // BLOCK_NUMBERS) for count in counts] if self.code == DType.Q8 else list(counts)

    def encode(
        self, source: torch.Tensor, target: torch.Tensor, op: int, finish: Callable[[], None] | None
    ) -> OnWire:
        """Casts the flat float32 tensor ``source``. The result goes into ``target``; ``finish`` is called then.

        If these are one, so is the memory. The reduction is an all-reduce, or else a reduce-scatter.
        """
        src = self._empty(source.numel())
        dst = src if target is source else self._empty(target.numel())
        if self.code == DType.Q8:
            _cast_blocks(src, source, to_wire=True)
        elif self.code == DType.F16:
            _cast_bounded(src.view(torch.float16), source, self._size)
        else:
            src.view(torch.bfloat16).copy_(source)

        def decode() -> None:
            if self.code == DType.Q8:
                _cast_blocks(dst, target, to_wire=False)
            elif self.code == DType.F16:
                target.copy_(dst.view(torch.float16))
                if op == Op.SUM:
                    target.mul_(self._size)
            else:
                target.copy_(dst.view(torch.bfloat16))
            if finish is not None:
                finish()

        cast_from = f"float32, {source.numel()} elements, op={'avg' if op == Op.AVG else 'sum'}"
        return OnWire(src, dst, int(Op.SUM) if self.code == DType.F16 else op, cast_from, decode)

    def _empty(self, count: int) -> torch.Tensor:
        return torch.empty(self.counts([count])[0] * itemsize(self.code), dtype=torch.uint8)


_CODES = {"bf16": DType.BF16, "f16": DType.F16, "int8": DType.Q8}


def wire_of(group: Group) -> Wire | None:
    """The wire of the group's job; None if its tensors travel as they are."""
    code = _CODES.get(group.job.settings.wire)
    one_host = len(set(group.topology.hosts)) == 1
    return None if code is None or one_host else Wire(int(code), group.size)


def _cast_bounded(wire: torch.Tensor, flat: torch.Tensor, size: int) -> None:
    """The values divided by ``size``. Finite ones stay so, also in the sum; infinities and NaN stay what they are."""
    torch.mul(flat, 1.0 / size, out=wire)
    most = _MOST_F16 / size
    if bool(wire.abs().max() <= most):
        return
    finite = torch.isfinite(flat)
    wire.copy_(torch.where(finite, (flat / size).clamp_(-most, most), flat))


def _cast_blocks(memory: torch.Tensor, flat: torch.Tensor, *, to_wire: bool) -> None:
    whole, rest = divmod(flat.numel(), BLOCK_NUMBERS)
    block = itemsize(DType.Q8)
    _cast(flat.data_ptr(), memory.data_ptr(), whole, to_wire)
    if rest:
        last: Any = torch.zeros(BLOCK_NUMBERS)
        if to_wire:
            last[:rest] = flat[whole * BLOCK_NUMBERS :]
        _cast(last.data_ptr(), memory.data_ptr() + whole * block, 1, to_wire)
        if not to_wire:
            flat[whole * BLOCK_NUMBERS :] = last[:rest]


def _cast(numbers: int, blocks: int, count: int, to_wire: bool) -> None:
    if to_wire:
        _core.cast(DType.F32, DType.Q8, blocks, numbers, count)
    else:
        _core.cast(DType.Q8, DType.F32, numbers, blocks, count)
