"""What a job says of itself on standard error, by SLIPSTREAM_LOG: ``info`` what it runs on, ``debug`` its plans too."""

from __future__ import annotations

import logging
import os
from typing import Any

from slipstream import __version__, _core
from slipstream.base.log import Log
from slipstream.base.settings import Settings
from slipstream.base.spans import format_spans
from slipstream.comm.rendezvous.discovery import advertised_addresses

__all__ = ["banner", "follow", "without_effect"]

_log = logging.getLogger("slipstream")
_warnings = Log("slipstream")
_handler = logging.StreamHandler()


def follow(job: Any, settings: Settings) -> None:
    """Says what ``job`` runs on, rank 0 for all, and shows messages from the level of the settings on.

    At level "warning" it leaves the logger as it is: warnings are shown without it, unless the program wants none.
    """
    if settings.log != "warning":
        _show(settings.log, job.rank)
    if job.rank == 0:
        if settings.log == "warning" and settings.reducers and job.size > 1 and len(set(job.hosts)) == 1:
            _warnings.warning("the reducers %s", _reducers(job, settings))  # `info` has it in the banner
        for text in without_effect(settings, ranks=job.size, hosts=len(set(job.hosts))):
            _warnings.warning("%s", text)
        for line in banner(job, settings) if settings.log != "warning" else []:
            _log.info("%s", line)
    if settings.log == "debug":
        _log.debug("process %d on %s, CPUs %s", os.getpid(), job.names[job.rank], _cpus())


def _show(level: str, rank: int) -> None:
    """Has messages from ``level`` on shown."""
    _log.setLevel(level.upper())
    if _handler not in _log.handlers and not _log.hasHandlers():
        _log.addHandler(_handler)  # a program that has set logging up shows them in its own way
        _log.propagate = False
    _handler.setFormatter(logging.Formatter(f"slipstream: rank {rank}: %(message)s"))


def without_effect(settings: Settings, *, ranks: int, hosts: int) -> list[str]:
    """Settings that change nothing in this job, and why."""
    found = []
    if ranks > 1 and hosts == 1:
        between_hosts = {"wire": settings.wire != "exact", "autotune": settings.autotune != "off"}
        for name, given in between_hosts.items():
            if given:
                text = f"--{name} {getattr(settings, name)} (SLIPSTREAM_{name.upper()}) has no effect"
                found.append(f"{text}: it acts between hosts, and all ranks share one host")
    if settings.wire_gather and settings.wire == "exact":
        found.append("--wire-gather (SLIPSTREAM_WIRE_GATHER) has no effect without --wire")
    if settings.autotune_log is not None and settings.autotune == "off":
        found.append("--autotune-log (SLIPSTREAM_AUTOTUNE_LOG) has no effect without --autotune")
    if settings.metrics_bind != "127.0.0.1" and settings.metrics_port is None:
        found.append("--metrics-bind (SLIPSTREAM_METRICS_BIND) has no effect without --metrics-port")
    return found


def banner(job: Any, settings: Settings) -> list[str]:
    """Lines that say how many ranks are where, and by what they talk to each other."""
    member, n = job.membership, job.size
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(member.host_ids):
        ranks.setdefault(host, []).append(rank)
    names = {host: job.names[members[0]] for host, members in ranks.items()}
    places = "; ".join(f"{names[host]}: {_ranks(members)}" for host, members in ranks.items())
    size = f"{_count(n, 'rank')} on {_count(len(ranks), 'host')}"
    return [
        f"slipstream {__version__}, job {member.job!r}: {size} ({places})",
        f"transport: {_transport(job, settings, len(ranks))}",
        f"reducers: {_reducers(job, settings)}; kernels for {_core.cpu_level()}; "
        f"a peer may be silent for {settings.heartbeat:g} s, an operation ends after "
        f"{settings.timeout:g} s",
    ]


def _transport(job: Any, settings: Settings, hosts: int) -> str:
    if job.size == 1:
        return "none, a job of one rank"
    shared = len(set(job.hosts)) < job.size
    tcp = hosts > 1 or not shared
    found = ["shared memory within a host" if tcp else "shared memory"] if shared else []
    if shared and settings.encrypt:
        found[0] += " (not encrypted: it does not leave the host)"
    if tcp:
        addresses = ", ".join(advertised_addresses(settings.interface)) if hosts > 1 else "loopback"
        automatic = "2 to 16 lanes" if hosts > 1 else "2 lanes"
        lanes = automatic if settings.lanes == "auto" else _count(int(settings.lanes), "lane")
        found.append(
            f"tcp{' between hosts' if shared else ''}, {lanes} a link, from {addresses}, "
            f"congestion control {_core.congestion(settings.congestion)}, "
            f"{'encrypted' if settings.encrypt else 'not encrypted'}"
        )
    if hosts > 1 and settings.wire != "exact":
        gathers = ", and all_gathers and all_to_alls of torch.distributed," if settings.wire_gather else ""
        found.append(
            f"large float32 sums of torch.distributed and of the Horovod API{gathers} as {settings.wire}"
        )
    return "; ".join(found) + _network(job)


def _network(job: Any) -> str:
    measured, network = job.measured, job.network
    if measured is None or len(set(job.hosts)) == 1:  # survivors may share a host
        return ""
    return (
        f"; the network between hosts: measured {measured.rate * 8e-6:.0f} Mbit/s and {measured.latency * 1e6:.0f} us, "
        f"rounded to {8e-6 / network.inter_beta:.0f} Mbit/s and {network.inter_alpha * 1e6:.0f} us for the choice of "
        "plans"
    )


def _reducers(job: Any, settings: Settings) -> str:
    if not settings.reducers:
        return "none"
    named = ", ".join(f"{host}:{port}" for host, port in settings.reducers)
    if job.size == 1:
        return f"{named} are not used: this is a job of one rank"
    if len(set(job.hosts)) == 1:
        return f"{named} are not used: they take part between hosts, and all ranks share one here. Leave them out"
    there = [
        one["name"] if one["incarnation"] else f"{one['name']} (not reached, and asked again every second)"
        for one in job.reducers.known
    ]
    return ", ".join(there)


def _ranks(members: list[int]) -> str:
    return f"rank{'s' if len(members) > 1 else ''} {format_spans(members)}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _cpus() -> str:
    return format_spans(sorted(os.sched_getaffinity(0)))
