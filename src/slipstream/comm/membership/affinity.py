"""Which CPUs slipstream's own threads keep to: those of the setting, or those near the network interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from slipstream.base.cpus import format_cpus, parse_cpus
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.discovery import advertised_addresses, interfaces

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["chosen_cpus", "cpus_near"]


def chosen_cpus(settings: Settings, *, one_host: bool) -> list[int]:
    """The CPUs for the engine thread and the I/O threads of a job; none of them: wherever they like.

    Raises ValueError naming the variable when this process may not use a CPU that it lists.
    """
    allowed = os.sched_getaffinity(0)
    if settings.affinity == "none":
        return []
    if settings.affinity == "auto":
        return [] if one_host else sorted(allowed & _cpus_near_job(settings.interface))
    wanted = set(parse_cpus(settings.affinity))
    if not wanted <= allowed:
        raise ValueError(
            f"SLIPSTREAM_AFFINITY: this process may not use CPU {format_cpus(wanted - allowed)}; "
            f"name some of {format_cpus(allowed)}, or use auto or none"
        )
    return sorted(wanted)


def _cpus_near_job(interface: str | None) -> set[int]:
    best = advertised_addresses(interface)[:1]
    carriers = [i.name for i in interfaces() if set(best) & {*i.ipv4, *i.ipv6}]
    return cpus_near(carriers[0]) if carriers else set()


def cpus_near(interface: str, sys: str | os.PathLike[str] = "/sys") -> set[int]:
    """The CPUs of the interface's NUMA node; none if that is unknown, or if the machine has one node only."""
    from pathlib import Path  # not every rank needs it

    nodes = Path(sys, "devices/system/node")
    found = set(_nodes_of(Path(sys, "class/net", interface)))
    if len(found) != 1 or len(list(nodes.glob("node[0-9]*"))) < 2:
        return set()
    try:
        text = (nodes / f"node{found.pop()}" / "cpulist").read_text(encoding="ascii").strip()
        return set(parse_cpus(text)) if text else set()  # a node may have memory alone
    except (OSError, ValueError):
        return set()


def _nodes_of(interface: Path) -> Iterator[int]:
    """The NUMA nodes of an interface, or of those that it is made of (a bond, a VLAN)."""
    try:
        node = int((interface / "device/numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        for lower in interface.glob("lower_*"):
            yield from _nodes_of(lower)
        return
    if node >= 0:
        yield node
