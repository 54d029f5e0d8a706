"""Which groups of devices the computation needs that JAX runs now, by its HLO text: `libslipstream_mpi.so` asks.

XLA makes a communicator of MPI for each group of devices that a collective is to join, when it first needs it, and
tells MPI the group's first device and this device's place alone. `sizes` finds how many devices such a group has.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["groups_in", "has_any", "of_this_process", "sizes"]

_COLLECTIVE = re.compile(
    r" (?:all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-broadcast|collective-permute)"
    r"(?:-start)?\(.*"
)
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_COMPUTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_BY_AXES = re.compile(r"replica_groups=mesh\[((?:'[^']*'=\d+,? ?)+)\] ?\{((?:'[^']*',? ?)*)\}")
_DEVICE_ASSIGNMENT = 15  # fields of HloModuleProto, and of the two messages in it
_COMPUTATION_DEVICES = 3
_REPLICA_DEVICE_IDS = 1


def sizes(first: int, place: int, made: str) -> str:
    """The sizes, as "2 4", of groups whose first device is ``first`` and whose device at ``place`` is this process's.

    They are those of collectives in the computation that runs now in this thread, without those that have been made:
    ``made`` has the processes of these, as "0,2;0,1,2,3". Empty if that cannot be found out.
    """
    executable = _running(sys._getframe())
    if executable is None:
        return ""
    known = {tuple(_ints(group)) for group in made.split(";")}
    process = {device.id: device.process_index for device in executable.client.devices()}
    mine = executable.local_devices()[0].id
    found = set()
    for module in executable.hlo_modules():
        devices = _devices_of(module.as_serialized_hlo_module_proto())
        for group in groups_in(module.to_string(), devices):
            ours = group[0] == first and group[place : place + 1] == [mine]
            if ours and tuple(process[one] for one in group) not in known:
                found.add(len(group))
    return " ".join(str(size) for size in sorted(found))


def of_this_process(executable: Any) -> list[tuple[int, ...]]:
    """The groups that devices of this process are in, each once, in an order that all have."""
    mine = {device.id for device in executable.local_devices()}
    if not mine:
        return []
    found: set[tuple[int, ...]] = set()
    for module in executable.hlo_modules():
        hlo = module.to_string()
        if _COLLECTIVE.search(hlo):
            devices = _devices_of(module.as_serialized_hlo_module_proto())
            found |= {tuple(group) for group in groups_in(hlo, devices)}
    return sorted(group for group in found if not mine.isdisjoint(group))


def has_any(executable: Any) -> bool:
    """Whether there is a collective in the computation."""
    return any(_COLLECTIVE.search(module.to_string()) for module in executable.hlo_modules())


def groups_in(hlo: str, devices: list[int]) -> list[list[int]]:
    """The groups of devices of all collectives. ``devices``: of the HLO's numbers. ValueError if one cannot be read."""
    return [
        [devices[one] for one in group]
        for line in _COLLECTIVE.findall(hlo)
        for group in _numbers(line, len(devices))
    ]


def _numbers(collective: str, all_of_them: int) -> list[list[int]]:
    if listed := _LISTED.search(collective):
        groups = re.findall(r"\{([\d,]*)\}", listed[1])
        return [_ints(group) for group in groups] or [list(range(all_of_them))]
    if computed := _COMPUTED.search(collective):
        shape, dims, order = _ints(computed[1]), _ints(computed[2]), computed[3]
        numbers = np.arange(math.prod(dims)).reshape(dims)
        return _rows((numbers.transpose(_ints(order)) if order else numbers).reshape(shape))
    if by_axes := _BY_AXES.search(collective):
        mesh = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", by_axes[1])}
        along = re.findall(r"'([^']*)'", by_axes[2])
        across = [name for name in mesh if name not in along]
        axes = [list(mesh).index(name) for name in (*across, *along)]
        numbers = np.arange(all_of_them).reshape(list(mesh.values())).transpose(axes)
        return _rows(numbers.reshape(-1, math.prod(mesh[name] for name in along)))
    if "replica_groups=" in collective:
        raise ValueError(f"replica groups in a form that is not known: {collective[:200]}")
    return [list(range(all_of_them))]  # a permutation of all


def _rows(numbers: NDArray[np.int_]) -> list[list[int]]:
    return [[int(one) for one in row] for row in numbers]


def _ints(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def _running(frame: FrameType | None) -> Any:
    """The executable of the innermost function of JAX on this thread's stack that runs one; None if none does."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(
            "jax."
        ):  # attributes of users' objects may be code of theirs
            executable = getattr(frame.f_locals.get("self"), "xla_executable", None)
            if executable is not None:
                return executable
        frame = frame.f_back
    return None


def _devices_of(proto: bytes) -> list[int]:
    """The device of each number: those of replicas, or else of partitions. ValueError if there are both."""
    by_partition = [
        _packed(ids)
        for assignment in _fields(proto, _DEVICE_ASSIGNMENT)
        for computation in _fields(assignment, _COMPUTATION_DEVICES)
        for ids in _fields(computation, _REPLICA_DEVICE_IDS)
    ]
    if len(by_partition) > 1 and len(by_partition[0]) > 1:
        raise ValueError("a computation with replicas and partitions")
    return [device for replicas in by_partition for device in replicas]


def _fields(message: bytes, number: int) -> Iterator[bytes]:
    """The fields of this number of a message of protobuf that have a length."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 2:
            length, at = _varint(message, at)
            if key >> 3 == number:
                yield message[at : at + length]
            at += length
        else:
            at += 8 if kind == 1 else 4


def _packed(message: bytes) -> list[int]:
    found, at = [], 0
    while at < len(message):
        one, at = _varint(message, at)
        found.append(one)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
