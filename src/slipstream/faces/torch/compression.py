"""Gradients in fewer bits: what travels is a cast of the tensor, and the result is cast back."""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "BF16Compressor",
    "CastCompressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
]


class Compressor:
    """Turns a tensor into what travels, and back. Subclass it for compressions of your own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor to send, of the same shape, and whatever `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the tensor in its former dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns ``tensor`` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns ``tensor`` itself."""
        return tensor


class CastCompressor(Compressor):
    """Base of the compressions that only cast: `wire` is the dtype that travels."""

    wire: torch.dtype


def _shrink(tensor: torch.Tensor, wire: torch.dtype) -> tuple[torch.Tensor, Any]:
    return (tensor.to(wire) if tensor.dtype.is_floating_point else tensor), tensor.dtype


def _restore(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
    return tensor.to(ctx) if ctx.is_floating_point else tensor


class FP16Compressor(CastCompressor):
    """Sends floating-point tensors as float16 (sums are still formed in float32)."""

    wire = torch.float16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns ``tensor`` as float16, and its dtype; what is not floating point stays as it is."""
        return _shrink(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns ``tensor`` in the dtype ``ctx``."""
        return _restore(tensor, ctx)


class BF16Compressor(CastCompressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 8 bits of precision."""

    wire = torch.bfloat16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns ``tensor`` as bfloat16, and its dtype; what is not floating point stays as it is."""
        return _shrink(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns ``tensor`` in the dtype ``ctx``."""
        return _restore(tensor, ctx)


class Compression:
    """The compressions to choose from, as Horovod names them; bf16 is ours."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
