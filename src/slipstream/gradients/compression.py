"""Gradients in fewer bits: the compressions that cast, which every framework can do by itself."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.base.dtypes import DType

__all__ = ["BF16", "FP16", "NONE", "Cast"]

_FLOATING_POINT = frozenset((DType.F64, DType.F32, DType.F16, DType.BF16, DType.F8E4M3, DType.F8E5M2))


@dataclass(frozen=True)
class Cast:
    """Floating-point gradients travel as ``wire`` (None: as they are); all others as they are.

    Sums of 16-bit gradients are formed in float32.
    """

    wire: DType | None

    def dtype(self, own: DType) -> DType:
        """The dtype in which gradients of the dtype ``own`` travel."""
        return own if self.wire is None or own not in _FLOATING_POINT else self.wire


NONE = Cast(None)
FP16 = Cast(DType.F16)
BF16 = Cast(DType.BF16)
