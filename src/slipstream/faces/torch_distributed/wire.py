"""What the tensors of a group travel as between hosts: `SLIPSTREAM_WIRE`, `slipstream run --wire bf16`.

The engine encodes and decodes. What is small, what is not float32, and what is no sum or average travels as it is;
with `SLIPSTREAM_WIRE_GATHER` what all_gather and all_to_all move travels so, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream.base.dtypes import Op, WireType
from slipstream.comm.collectives.wires import LEAST_BYTES, wire_of_job
from slipstream.comm.membership.group import Group

__all__ = ["EXACT", "Wire", "wire_of"]

_SUMS = int(Op.SUM), int(Op.AVG)


@dataclass(frozen=True)
class Wire:
    """``code``: the wire type of a group's sums, and, if ``gathers``, of what it gathers and exchanges."""

    code: WireType = WireType.EXACT
    gathers: bool = False

    def of_sum(self, elements: int, dtype: torch.dtype, op: int) -> WireType:
        """What a reduction by the engine's ``op`` travels as: the same on all ranks that call it alike."""
        return self.code if op in _SUMS and _is_large(elements, dtype) else WireType.EXACT

    def of_gathered(self, elements: int, dtype: torch.dtype) -> WireType:
        """What so many elements of all ranks together, which are gathered, travel as."""
        return self.code if self.gathers and _is_large(elements, dtype) else WireType.EXACT

    def of_exchanged(self, dtype: torch.dtype) -> WireType:
        """What an all-to-all travels as. Its size says nothing: each rank may have another one."""
        return self.code if self.gathers and dtype is torch.float32 else WireType.EXACT


EXACT = Wire()


def _is_large(elements: int, dtype: torch.dtype) -> bool:
    return dtype is torch.float32 and elements * 4 >= LEAST_BYTES


def wire_of(group: Group) -> Wire:
    """The wire of the group's job."""
    return Wire(wire_of_job(group), group.job.settings.wire_gather) if group.spans_hosts else EXACT
