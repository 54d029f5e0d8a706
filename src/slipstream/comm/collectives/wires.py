"""Which data may travel between hosts in a wire type, and which does."""

from __future__ import annotations

from slipstream.base.dtypes import DType, Op, WireType, as_wire, name_of
from slipstream.base.log import Log
from slipstream.comm.membership.group import Group

__all__ = ["LEAST_BYTES", "check_wire", "tell_of_no_effect", "wire_for", "wire_of_job", "wire_of_sum"]

LEAST_BYTES = 64 << 10
"""Of a tensor: a wire that is set for all operations of a kind leaves smaller ones as they are."""
_SUMS = (Op.SUM, Op.AVG)

_log = Log("slipstream")
_told: set[str] = set()


def check_wire(wire: int | str | None, dtype: int, op: int = -1) -> WireType:
    """The wire type. ValueError if there is none, or the data is not float32 that is added, or moved (``op`` -1)."""
    found = as_wire(wire)
    if found and (dtype != DType.F32 or op not in (-1, *_SUMS)):
        what = f"{Op(op).name} of " if op >= 0 else ""
        raise ValueError(
            f"{what}{name_of(dtype)} cannot travel as {found.name.lower()}: only float32 data, moved or added"
        )
    return found


def wire_for(group: Group, wire: int | str | None, dtype: int, op: int) -> WireType:
    """What the data of an operation of this group travels as."""
    found = check_wire(wire, dtype, op)
    if found and not group.spans_hosts:
        tell_of_no_effect(group, found.name.lower())
        return WireType.EXACT
    return found


def tell_of_no_effect(group: Group, wire: str) -> None:
    """Warns, once and on one rank, of a wire that the program asks for where there is no network.

    That of the job's setting is told as the job starts.
    """
    if group.spans_hosts or group.size == 1 or group.rank != 0:
        return
    if wire not in _told and wire != group.job.settings.wire:
        _told.add(wire)
        _log.warning(
            "the wire %s, which the program asks for, has no effect: it acts between hosts, and all ranks share one "
            "host",
            wire,
        )


def wire_of_job(group: Group) -> WireType:
    """The job's own (SLIPSTREAM_WIRE), in a group of several hosts."""
    setting = group.job.settings.wire
    return as_wire(setting) if setting != "exact" and group.spans_hosts else WireType.EXACT


def wire_of_sum(wire: WireType, dtype: int, nbytes: int, op: int) -> WireType:
    """What a reduction by the engine's ``op`` travels as, of a tensor of so many bytes, where ``wire`` is asked for."""
    return wire if wire and dtype == DType.F32 and nbytes >= LEAST_BYTES and op in _SUMS else WireType.EXACT
