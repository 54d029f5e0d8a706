"""Gradients in fewer bits: what travels is a cast of the tensor, and the result is cast back."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.faces.torch_tensors import DTYPES
from slipstream.gradients.compression import BF16, FP16, Cast

__all__ = [
    "BF16Compressor",
    "CastCompressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "as_compressor",
]


class Compressor:
    """Turns a tensor into what travels, and back. Subclass it for compressions of your own.

    >>> class Halves(hvd.Compressor):
    ...     @staticmethod
    ...     def compress(tensor):
    ...         return tensor.half(), tensor.dtype
    ...     @staticmethod
    ...     def decompress(tensor, ctx):
    ...         return tensor.to(ctx)
    >>> hvd.allreduce(torch.ones(2), op=hvd.Sum, compression=Halves)
    tensor([2., 2.])
    """

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
    """Base of the compressions that only cast."""

    cast: Cast


def _shrink(tensor: torch.Tensor, cast: Cast) -> tuple[torch.Tensor, Any]:
    if cast.wire is None or not tensor.dtype.is_floating_point:
        return tensor, tensor.dtype
    return tensor.to(DTYPES[cast.wire]), tensor.dtype


def _restore(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
    return tensor.to(ctx) if ctx.is_floating_point else tensor


class FP16Compressor(CastCompressor):
    """Sends floating-point tensors as float16 (sums are still formed in float32)."""

    cast = FP16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns ``tensor`` as float16, and its dtype; what is not floating point stays as it is."""
        return _shrink(tensor, FP16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns ``tensor`` in the dtype ``ctx``."""
        return _restore(tensor, ctx)


class BF16Compressor(CastCompressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 8 bits of precision."""

    cast = BF16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns ``tensor`` as bfloat16, and its dtype; what is not floating point stays as it is."""
        return _shrink(tensor, BF16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns ``tensor`` in the dtype ``ctx``."""
        return _restore(tensor, ctx)


class Compression:
    """The compressions to choose from, as Horovod names them; bf16 is ours.

    >>> hvd.allreduce(torch.ones(2), op=hvd.Sum, compression=hvd.Compression.fp16)
    tensor([2., 2.])
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def as_compressor(compression: Any) -> Any:
    """``compression`` itself; TypeError that says what is accepted if it compresses nothing."""
    if not callable(getattr(compression, "compress", None)):
        raise TypeError(
            "compression takes Compression.none, Compression.fp16, Compression.bf16 or a Compressor of your own, not "
            f"{compression!r:.40}"
        )
    return compression
