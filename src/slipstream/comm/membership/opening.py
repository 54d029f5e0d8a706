"""The session of a new job: it listens, tells the other ranks where, hears the same of them, and starts."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from slipstream import _core
from slipstream.base.cpus import cpu_quota, format_cpus, parse_cpus
from slipstream.base.errors import Mismatch
from slipstream.base.excepthook import report_pipe
from slipstream.base.settings import Settings
from slipstream.comm.membership.affinity import chosen_cpus
from slipstream.comm.membership.meeting import Meeting, MeetingPlace
from slipstream.comm.membership.options import link_options
from slipstream.comm.membership.patience import patience
from slipstream.comm.reducers.job_reducers import JobReducers
from slipstream.comm.rendezvous.discovery import bind_addresses, reachable_addresses
from slipstream.comm.rendezvous.join import Membership, exchange

__all__ = ["Opened", "open_session"]

# Groups of more have a board only if this process may use as many cores: a board links all members to the leader.
_BOARD_RANKS = 16
_ALIKE = ("wire", "wire_gather", "hierarchy", "autotune")  # settings that must be the same on all ranks


class Opened(NamedTuple):
    """A session that has started, and what the ranks have told each other."""

    session: _core.Session
    hosts: tuple[str, ...]  # per rank: what can share memory has the same
    cpus: tuple[frozenset[int], ...]  # per rank: those of its host that it may run on
    names: tuple[str, ...]  # per rank: what its host calls itself
    nonce: bytes  # of this start; every rank has contributed to it
    meeting: Meeting | None  # for the survivors of a failure, if there are other ranks
    collecting: Meeting | None  # rank 0's, for what the others record
    collector: MeetingPlace | None  # where that is
    questions: Meeting | None  # for those who ask how a rank is doing
    remembered: str | None  # what rank 0's cache of choices has


def open_session(settings: Settings, member: Membership, reducers: JobReducers) -> Opened:
    """Opens the session of ``member``. Tells all ranks which ``reducers`` there are."""
    session = _core.Session(_session_options(settings, member))
    meetings: dict[str, Meeting] = {}
    try:
        if member.size > 1:
            for what in ("meeting", "questions", "collecting")[: 3 if member.rank == 0 else 2]:
                meetings[what] = _open_meeting(settings, member)
        return _open(settings, member, session, reducers, meetings)
    except BaseException:
        session.close()
        for meeting in meetings.values():
            meeting.close()
        raise


def _session_options(settings: Settings, member: Membership) -> _core.SessionOptions:
    options = _core.SessionOptions()
    options.rank, options.size = member.rank, member.size
    options.job, options.secret = f"{member.job}/{member.epoch}", member.secret
    options.heartbeat, options.timeout = settings.heartbeat, settings.timeout
    cores = len(os.sched_getaffinity(0))
    waits = patience(member.local_size, cores, cpu_quota())
    options.spin_us, options.board_spin_us, options.busy_poll_us = waits.call, waits.small_call, waits.sockets
    options.held_ns = waits.held
    options.relays = waits.relays
    options.report_pipe = report_pipe() or options.report_pipe
    options.board_ranks = max(_BOARD_RANKS, cores) if settings.board == "on" else 0
    options.link = link_options(settings, chosen_cpus(settings, one_host=len(set(member.host_ids)) == 1))
    return options


def _open_meeting(settings: Settings, member: Membership) -> Meeting:
    one_host = len(set(member.host_ids)) == 1
    bind = bind_addresses(settings.interface, one_host=one_host)
    return Meeting(bind, bind if one_host else reachable_addresses(settings.address, settings.interface))


def _open(
    settings: Settings,
    member: Membership,
    session: _core.Session,
    reducers: JobReducers,
    meetings: Mapping[str, Meeting],
) -> Opened:
    """``meetings``: none in a job of one rank; else by the names of the fields of `Opened`."""
    one_host = len(set(member.host_ids)) == 1
    if settings.transport == "shm" and not one_host:
        raise ValueError("SLIPSTREAM_TRANSPORT: shm needs all ranks on one host; use auto")
    use_shm = settings.transport != "tcp"
    use_tcp = member.size > 1 and not (use_shm and one_host)
    mine: dict[str, Any] = {
        "host": settings.host_name or socket.gethostname(),
        "shm": "",
        "addresses": [],
        "port": 0,
    }
    if use_shm and member.size > 1:
        mine["shm"] = session.listen_shm()
    if use_tcp:
        bind = bind_addresses(settings.interface, one_host=one_host)
        mine["port"] = session.listen_tcp(bind)
        mine["addresses"] = bind if one_host else reachable_addresses(settings.address, settings.interface)
    mine["transport"] = settings.transport
    mine |= {name: getattr(settings, name) for name in _ALIKE}
    mine["tuned"] = None
    if settings.autotune != "off":
        from slipstream.comm.tuning.job_tuning import what_to_tell  # few jobs tune

        apart = len(set(member.host_ids)) if use_shm else member.size
        mine["tuned"] = what_to_tell(settings, member.rank, apart)
    mine["cpus"] = format_cpus(os.sched_getaffinity(0))
    mine |= {what: [one.place.addresses, one.place.port] for what, one in meetings.items()}
    mine["nonce"] = os.urandom(16).hex()
    mine["reducers"] = reducers.register()
    lacking = "every rank has come, but not all have said where they listen"
    everyone = [json.loads(text) for text in exchange(member, json.dumps(mine).encode(), lacking)]
    _check_transports([one["transport"] for one in everyone])
    for name in _ALIKE:
        _check_alike(name, [one[name] for one in everyone])
    peers = [
        (
            one["host"],
            use_shm and host == member.host_ids[member.rank],
            one["shm"],
            one["addresses"],
            one["port"],
        )
        for one, host in zip(everyone, member.host_ids, strict=True)
    ]
    for what in ("meeting", "questions"):
        if what in meetings:
            meetings[what].places = tuple(_place(one[what]) for one in everyone)
    collector = _place(everyone[0]["collecting"]) if meetings else None
    session.start(peers)
    hosts = member.host_ids if use_shm else [str(r) for r in range(member.size)]
    nonces = [one["nonce"] for one in everyone]
    nonces[member.rank] = mine["nonce"]  # whatever the store says: so it is new
    reducers.known = tuple(everyone[0]["reducers"])
    names = tuple(one["host"] for one in everyone)
    cpus = tuple(frozenset(parse_cpus(one["cpus"])) for one in everyone)
    return Opened(
        session,
        tuple(hosts),
        cpus,
        names,
        _combined(nonces),
        meetings.get("meeting"),
        meetings.get("collecting"),
        collector,
        meetings.get("questions"),
        everyone[0]["tuned"],
    )


def _combined(nonces: list[str]) -> bytes:
    """The nonce of a job, from those of its ranks in rank order."""
    return hashlib.sha256("/".join(nonces).encode()).digest()


def _place(told: list[Any]) -> MeetingPlace:
    addresses, port = told
    return MeetingPlace(tuple(addresses), port)


def _check_alike(name: str, values: list[str]) -> None:
    """Mismatch on all ranks if some would send other messages than the others expect."""
    other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
    if other is not None:
        raise Mismatch(
            f"SLIPSTREAM_{name.upper()} differs between ranks: rank 0 has {values[0]}, rank {other} has "
            f"{values[other]}; it must be the same on all ranks: --{name.replace('_', '-')} sets it for a whole job"
        )


def _check_transports(transports: list[str]) -> None:
    """Mismatch on all ranks if some may share memory and others may not: they would look for each other in vain."""
    tcp = [rank for rank, transport in enumerate(transports) if transport == "tcp"]
    others = [rank for rank, transport in enumerate(transports) if transport != "tcp"]
    if tcp and others:
        raise Mismatch(
            f"SLIPSTREAM_TRANSPORT differs between ranks: rank {tcp[0]} has tcp, rank {others[0]} has "
            f"{transports[others[0]]}; it must be the same on all"
        )
