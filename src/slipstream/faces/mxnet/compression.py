"""What gradients are cast to on their way: Horovod's `Compression` for MXNet's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Compression"]


class _None:
    """They travel as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array itself, and what `decompress` needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array itself."""
        return tensor


class _Fp16(_None):
    """Floating-point gradients are cast to float16, and their sums are float16, too."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array as float16, and its own type."""
        if tensor.dtype not in (np.float32, np.float64):
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array in the type that it had."""
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """``Compression.none`` and ``Compression.fp16``, for `DistributedTrainer`."""

    none = _None
    fp16 = _Fp16
