"""One rank of a measurement: ``python -m slipstream.bench.collective.rank TASK``, started by `slipstream.bench.jobs`.

All contenders run in this one process, in turns; the result of every batch is checked, element by element.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
from typing import Any

import numpy as np

import slipstream
from slipstream.base.settings import Settings
from slipstream.bench import machine
from slipstream.bench.collective.contenders import Contender, Place, need_of, open_contender
from slipstream.bench.collective.meter import Meter
from slipstream.bench.collective.task import MEMORY_FROM, Task
from slipstream.bench.gathering import broadcast_object, gather_objects
from slipstream.bench.jobs import channel
from slipstream.bench.turns import agreed, start_message
from slipstream.comm.rendezvous.rank_sources import find_placement

__all__ = ["main"]

_SETTLING_BYTES = 1 << 20  # to each other rank
_SETTLING_SECONDS = 3.0


def main() -> None:
    """Measures what the command line asks for, and reports it as it comes."""
    task = Task.from_json(sys.argv[1])
    settings = Settings.from_environment()
    report = channel(find_placement(settings, os.environ).rank)
    gc.disable()
    slipstream.init()
    idle = _idle_cpu(task.idle_seconds)  # before any other library has threads in this process
    hosts = slipstream.world().topology.hosts
    one_host = len(set(hosts)) == 1
    place = Place(slipstream.rank(), slipstream.size(), slipstream.local_rank(), one_host, settings.interface)
    contenders, missing = _open(task.contenders, place)
    memory = None
    if one_host and max(shape.nbytes for shape in task.shapes) >= MEMORY_FROM:
        memory = machine.memory_traffic(slipstream.barrier)
    start = start_message(hosts, missing)
    for contender in contenders:
        start["versions"].update(contender.versions)
    report({**start, "ranks": gather_objects({"memory": memory, "idle_cpu": idle})})
    if not one_host and settings.lanes == "auto":
        _settle()
    meter = Meter(task, contenders, _one_clock())
    for shape in task.shapes:
        report({"kind": "size"} | meter.measure(shape))
    slipstream.barrier()
    for contender in contenders:
        contender.close()
    slipstream.shutdown()


def _open(names: tuple[str, ...], place: Place) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that all ranks can open, and why the others are missing."""
    reasons: dict[str, str] = {}
    for name in names:
        try:
            for module in need_of(name).imports:
                importlib.import_module(module)
        except ImportError as error:
            reasons[name] = f"{error}; install: {need_of(name).install}"
    missing = agreed(reasons)  # of all first: starting one of them needs all ranks
    opened = []
    for name in names:
        if name in missing:
            continue
        reasons = {}
        try:
            contender = open_contender(name, place)
        except ImportError as error:
            reasons = {name: f"{error}; install: {need_of(name).install}"}
        reasons = agreed(reasons)
        if reasons:
            missing |= reasons
        else:
            opened.append(contender)
    return opened, missing


def _idle_cpu(seconds: float) -> float | None:
    """Share of one core that this process uses while its engine has nothing to do, after it had something."""
    if not seconds:
        return None
    for count in (1, 1 << 10, 4 << 20):
        slipstream.all_reduce(np.ones(count, dtype=np.float32))
    slipstream.barrier()
    return machine.idle_cpu(seconds)


def _settle() -> None:
    """Lets the links between hosts find out how many lanes they need (docs/tcp_links.md), which is no size's cost."""
    data = np.ones((slipstream.size(), _SETTLING_BYTES // 4), dtype=np.float32)
    taken = np.empty_like(data)
    end = time.monotonic() + _SETTLING_SECONDS
    while broadcast_object(time.monotonic() < end):
        for _ in range(8):
            slipstream.all_to_all(data, out=taken)


def _one_clock() -> bool:
    """Whether all ranks run on one kernel, and so read the same clock."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boots: list[Any] = gather_objects(file.read())
    return len(set(boots)) == 1


if __name__ == "__main__":
    main()
