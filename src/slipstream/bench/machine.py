"""The machine that was measured: its name for the record, the speed of its memory, the cost of an idle engine."""

from __future__ import annotations

import os
import platform
import re
import resource
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import numpy as np

__all__ = ["cpu_seconds", "describe", "host_class", "idle_cpu", "memory_traffic", "versions"]

_PROBE_BYTES = 64 << 20  # well beyond what a core's own cache holds
_PROBES = 5


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(("model name", "Model", "cpu model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe() -> dict[str, Any]:
    """CPU model, cores this process may use, memory (GiB), kernel, and the load of the last minute."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages * page / 2**30, 1),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def host_class(machine: Mapping[str, Any]) -> str:
    """What may stand in a file name for machines of this kind: ``2-core-intel-xeon-processor``."""
    name = re.sub(r"\((?:R|TM|r|tm)\)|@.*|\bCPU\b", " ", machine["cpu"])
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{machine['cores']}-core-{slug or machine['architecture']}"


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of those of ``packages`` that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def memory_traffic(meet: Callable[[], object]) -> dict[str, Any]:
    """Times this rank's part of moving memory while every rank does the same; ``meet`` is a barrier.

    Returns the bytes of one array and, per repeat, the seconds of ``a = b`` (``copy``) and ``a += b`` (``add``)
    on float32.
    """
    a = np.ones(_PROBE_BYTES // 4, dtype=np.float32)
    b = np.zeros_like(a)
    return {
        "bytes": _PROBE_BYTES,
        "copy": _seconds(lambda: np.copyto(a, b), meet),
        "add": _seconds(lambda: np.add(a, b, out=a), meet),
    }


def cpu_seconds() -> float:
    """Seconds that all threads of this process have run."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def idle_cpu(seconds: float) -> float:
    """The share of one core that this process uses while it sleeps for ``seconds``."""
    wall, cpu = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def _seconds(act: Callable[[], object], meet: Callable[[], object]) -> list[float]:
    act()
    times = []
    for _ in range(_PROBES):
        meet()
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return times
