"""What the tensors of a group travel as between hosts: `SLIPSTREAM_WIRE`, `slipstream run --wire bf16`.

The engine encodes and decodes. What is small, what is not float32, and what is no sum or average travels as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream.base.dtypes import Op, WireType, as_wire
from slipstream.comm.membership.group import Group

__all__ = ["EXACT", "LEAST_BYTES", "Wire", "wire_of"]

LEAST_BYTES = 64 << 10  # of a tensor
_SUMS = int(Op.SUM), int(Op.AVG)


@dataclass(frozen=True)
class Wire:
    """``code``: the wire type of a group's sums, and, if ``gathers``, of what it gathers."""

    code: WireType = WireType.EXACT
    gathers: bool = False

    def of_sum(self, elements: int, dtype: torch.dtype, op: int) -> WireType:
        """What a reduction by the engine's ``op`` travels as: the same on all ranks that call it alike."""
        return self.code if op in _SUMS and _is_large(elements, dtype) else WireType.EXACT

    def of_gathered(self, elements: int, dtype: torch.dtype) -> WireType:
        """What so many elements of all ranks together, which are gathered, travel as."""
        return self.code if self.gathers and _is_large(elements, dtype) else WireType.EXACT


EXACT = Wire()


def _is_large(elements: int, dtype: torch.dtype) -> bool:
    return dtype is torch.float32 and elements * 4 >= LEAST_BYTES


def wire_of(group: Group) -> Wire:
    """The wire of the group's job."""
    settings = group.job.settings
    return Wire(as_wire(settings.wire), settings.wire_gather) if group.spans_hosts else EXACT
