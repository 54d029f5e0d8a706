"""Makes the groups of devices that a computation of JAX needs before it runs: each by its members alone.

XLA makes a communicator of MPI for a group when a collective first needs it, and tells MPI the group's first device and
this device's place alone. Groups that differ can look alike in that, and which of them is meant depends on the way that
the computation takes. So before a computation runs for the first time, each of its groups has a small computation to
itself: the sum of its devices' places. XLA keeps the communicator that it makes for it, and the group is known, because
it is the only one that is made at that moment. The members of a group need no other process then. A process makes a
communicator for each of its devices that is one.

All members run the same computation and take its groups in one order, so they meet.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.base.log import Log
from slipstream.comm.collectives.native_calls import handle_of
from slipstream.comm.membership import job
from slipstream.comm.membership.group import Group
from slipstream.faces.mpi_trampoline import groups

__all__ = ["Ahead", "group_of", "watch"]

_log = Log("slipstream")
_Devices = tuple[int, ...]

_SUM = """module @slipstream_group attributes {{mhlo.num_replicas = {n} : i32, mhlo.num_partitions = 1 : i32}} {{
  func.func public @main() -> tensor<ui32> {{
    %place = stablehlo.replica_id : tensor<ui32>
    %sum = "stablehlo.all_reduce"(%place) ({{
    ^bb0(%a: tensor<ui32>, %b: tensor<ui32>):
      %c = stablehlo.add %a, %b : tensor<ui32>
      stablehlo.return %c : tensor<ui32>
    }}) {{replica_groups = dense<[{places}]> : tensor<1x{n}xi64>}} : (tensor<ui32>) -> tensor<ui32>
    return %sum : tensor<ui32>
  }}
}}
"""


_USE_GLOO = (
    "Several devices in a process need a version of JAX that slipstream knows: use one device in each process "
    "(jax_num_cpu_devices=1, no --xla_force_host_platform_device_count), or JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo"
)


@dataclass
class _Wanted:
    """A group that is being made: XLA is about to ask for it, for each device of this process."""

    group: Group
    ranks: list[int]  # of the devices
    asked: int = 0


class Ahead:
    """The groups of one process. ``ranks``: the rank of each of JAX's processes, by its number."""

    def __init__(self, ranks: dict[int, int]) -> None:
        self._ranks = ranks
        self._lock = threading.Lock()
        self._made: dict[_Devices, Future[Group]] = {}
        # by first device and place, which is what XLA tells: one at a time
        self._wanted: dict[tuple[int, int], _Wanted] = {}
        self._free = threading.Condition(self._lock)
        self._alone: dict[int, Group] = {}  # those of one device of this process, until XLA asks for them
        self._several = False  # a process has several devices
        self._unread = False  # a computation whose groups are not known has run

    def make_for(self, executable: Any) -> None:
        """Makes the groups of this computation that this process is in and that have not been made. JAX's error."""
        try:
            needed = groups.of_this_process(executable)
            self._several = self._several or _several_in_a_process(executable.client)
        except Exception as error:  # of another version of JAX
            why = f"the groups of a computation cannot be found out: {type(error).__name__}: {error}"
            if self._several or devices_here() > 1:
                raise _error(f"MPI error: {why}. {_USE_GLOO}") from error
            _log.info(why)
            self._unread = True
            return
        for devices in needed:
            if len(devices) > 1:
                self._make(executable.client, devices)
            elif devices not in self._made:
                self._await_alone(devices[0])

    def group_of(self, first: int, place: int) -> tuple[Group, list[int]] | None:
        """The group that XLA asks for, and the rank of each of its devices, if it is being made."""
        with self._free:
            wanted = self._wanted.pop((first, place), None)
            if wanted is not None:
                wanted.asked += 1
                self._free.notify_all()
                return wanted.group, wanted.ranks
            # All larger groups are made ahead, so outside of that XLA asks for this one.
            alone = self._alone.pop(first, None) if place == 0 and not self._unread else None
            return (alone, list(alone.ranks)) if alone else None

    def why_unknown(self) -> str:
        """Why `group_of` must know each group; empty if all processes may make one together."""
        several = self._several or devices_here() > 1
        return f"it is not a group of the computation that JAX runs. {_USE_GLOO}" if several else ""

    def _await_alone(self, device: int) -> None:
        """XLA is going to ask for the group of this device alone, once; it makes no sum of one device."""
        current = job.current_or_only()
        with self._lock:
            if (device,) not in self._made:
                group = Group.named(f"JAX's device {device} alone", [current.rank], current)
                self._made[device,] = Future()
                self._made[device,].set_result(group)
                self._alone[device] = group

    def _make(self, client: Any, devices: _Devices) -> None:
        with self._lock:
            future = self._made.get(devices)
            mine = future is None
            if future is None:
                future = self._made[devices] = Future()
        if mine:
            try:
                future.set_result(self._meet(client, devices))
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:  # Ctrl-C, say: the other members may have met without this process
                future.set_exception(
                    _error(
                        f"the group of JAX's devices {devices} was not made: {type(error).__name__} was raised "
                        "meanwhile on this rank. Start the program again"
                    )
                )
                raise
        future.result()  # another thread may make it: then it has the time that the members have to meet

    def _meet(self, client: Any, devices: _Devices) -> Group:
        """Has XLA make the communicator, and the members meet in it."""
        by_id = {device.id: device for device in _all_devices(client)}
        rank_of = {one: self._ranks[device.process_index] for one, device in by_id.items()}
        ranks = [rank_of[one] for one in devices]
        group = Group.named(f"JAX's devices {devices}", list(dict.fromkeys(ranks)), job.current_or_only())
        if list(devices) == sorted(by_id, key=lambda one: (rank_of[one], one)):
            _serve_by_reducers(group)
        run = _compiled(client, [by_id[one] for one in devices])
        here = {device.id for device in client.local_devices()}
        keys = [(devices[0], place) for place, one in enumerate(devices) if one in here]
        with self._free:
            self._free.wait_for(lambda: self._wanted.keys().isdisjoint(keys))
            wanted = _Wanted(group, ranks)
            self._wanted.update(dict.fromkeys(keys, wanted))
        try:
            totals = run()
        finally:
            with self._free:
                for key in keys:
                    if self._wanted.get(key) is wanted:
                        del self._wanted[key]
                if (
                    not wanted.asked
                ):  # JAX has refused to run it, in this thread say: the next computation tries anew
                    del self._made[devices]
                self._free.notify_all()
        if wanted.asked != len(keys) or totals != [sum(range(len(devices)))] * len(keys):
            raise _error(
                f"the group of JAX's devices {devices} is not that of ranks {ranks}: the places of its members add up "
                f"to {totals}. This is a bug in slipstream, or JAX's version is not supported: use "
                "JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo"
            )
        return group


def _serve_by_reducers(group: Group) -> None:
    """Has the job's reducers serve this group in place of the program's, if it is of all ranks in their order.

    It is of all devices, so there is one such group. All ranks are here before they use it.
    """
    program = group.job.world
    whole = program is not None and group.ranks == program.ranks
    if whole and group.job.reducers.for_choices(program) is not None:
        program.give_reducers(group)


def _compiled(client: Any, devices: list[Any]) -> Callable[[], list[int]]:
    """The small computation: its results on the devices of this process."""
    n = len(devices)
    options = sys.modules["jax._src.compiler"].get_compile_options(
        num_replicas=n,
        num_partitions=1,
        device_assignment=np.array([one.id for one in devices]).reshape(n, 1),
    )
    text = _SUM.format(n=n, places=list(range(n)))
    place = sys.modules["jaxlib._jax"].DeviceList(tuple(devices))
    executable = client.compile_and_load(text.encode(), place, options)

    def run() -> list[int]:
        try:
            results = executable.execute_sharded([]).disassemble_into_single_device_arrays()
            return [int(np.asarray(one)) for one in results[0]]
        except ValueError as error:  # where XLA runs it in this thread
            raise _error(str(error)) from None

    return run


def _error(text: str) -> Exception:
    error: Exception = sys.modules["jax"].errors.JaxRuntimeError(text)
    return error


def _all_devices(client: Any) -> list[Any]:
    return list(client.devices())


def _several_in_a_process(client: Any) -> bool:
    numbers = [device.process_index for device in _all_devices(client)]
    return len(numbers) > len(set(numbers))


def devices_here() -> int:
    """How many CPU devices JAX is about to make, or has made, in this process."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    chosen = getattr(getattr(bridge, "num_cpu_devices", None), "value", -1)
    if bridge is None or chosen >= 0:
        return int(chosen)
    forced = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(forced[-1]) if forced else 1


_ahead: Ahead | None = None
_refused = ""  # why no group can be made


def group_of(first: int, place: int) -> str:
    """What XLA asks for: "HANDLE 2,3", a new reference to the group's handle and the rank of each device.

    Empty if unknown: all processes make it together. "!" and why if they cannot.
    """
    found = _ahead and _ahead.group_of(first, place)
    if found:
        group, ranks = found
        return f"{handle_of(group)} {','.join(map(str, ranks))}"
    why = _ahead.why_unknown() if _ahead else _refused
    return f"!{why}" if why else ""


def watch(numbers: list[int]) -> None:
    """Has JAX make groups ahead. ``numbers``: those of JAX's processes, by rank."""
    global _ahead
    try:
        if sorted(numbers) != list(range(len(numbers))):
            raise ValueError(f"JAX's processes have the numbers {numbers}")
        ahead = Ahead({number: rank for rank, number in enumerate(numbers)})
        _before_each_computation(ahead.make_for)
        _ahead = ahead
    except Exception as error:  # of another version of JAX
        if devices_here() > 1:
            _refuse(f"JAX has {devices_here()} CPU devices in this process, and {error}. {_USE_GLOO}")
        else:
            _log.info(f"groups are made by all processes: {error}")


def _refuse(why: str) -> None:
    """Has each computation of several devices fail for this reason: XLA hides it in some collectives."""
    global _refused
    _refused = why

    def fail(executable: Any) -> None:
        if groups.has_any(executable):
            raise _error(f"MPI error: {why}")

    with contextlib.suppress(LookupError):
        _before_each_computation(fail)


def _before_each_computation(act: Callable[[Any], None]) -> None:
    """Calls ``act`` with each executable of CPUs before JAX runs it for the first time."""
    kind = getattr(sys.modules.get("jax._src.interpreters.pxla"), "ExecuteReplicated", None)
    if kind is None:
        raise LookupError("this version of JAX is not known")
    run = kind.__call__
    seen: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(run)
    def call(self: Any, *args: Any) -> Any:
        if self not in seen:
            if self.xla_executable.client.platform == "cpu":
                act(self.xla_executable)
            seen.add(self)
        return run(self, *args)

    kind.__call__ = call
