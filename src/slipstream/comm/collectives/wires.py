"""Which data may travel between hosts in a wire type, and which does."""

from __future__ import annotations

from slipstream.base.dtypes import DType, Op, WireType, as_wire, name_of
from slipstream.comm.membership.group import Group

__all__ = ["check_wire", "wire_for"]


def check_wire(wire: int | str | None, dtype: int, op: int = -1) -> WireType:
    """The wire type. ValueError if there is none, or the data is not float32 that is added, or moved (``op`` -1)."""
    found = as_wire(wire)
    if found and (dtype != DType.F32 or op not in (-1, Op.SUM, Op.AVG)):
        what = f"{Op(op).name} of " if op >= 0 else ""
        raise ValueError(
            f"{what}{name_of(dtype)} cannot travel as {found.name.lower()}: only float32 data, moved or added"
        )
    return found


def wire_for(group: Group, wire: int | str | None, dtype: int, op: int) -> WireType:
    """What the data of an operation of this group travels as."""
    found = check_wire(wire, dtype, op)
    return found if group.spans_hosts else WireType.EXACT
