"""Jobs: `enter` joins one, `init` makes one the process's own, and the rest says who is who in that.

A process is in one job by `init`; the torch back end enters more, one for every default process group.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream import _core
from slipstream.base import errors
from slipstream.base.entrances import attendants
from slipstream.base.settings import Settings
from slipstream.comm.affinity import chosen_cpus
from slipstream.comm.calibration import SmallCosts, calibrate
from slipstream.comm.discovery import advertised_addresses, bind_address
from slipstream.comm.reducers import Keeper, Request, reducer_secret
from slipstream.comm.rendezvous import Membership, exchange, join
from slipstream.plan.reducers import worker
from slipstream.plan.registry import build

__all__ = [
    "Job",
    "cross_rank",
    "cross_size",
    "current",
    "enter",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]

_SPIN_US = 50  # how long a waiting caller looks before it sleeps, if every rank of the host has a core
_CLASSES = {
    2: errors.Mismatch,
    3: errors.Timeout,
    4: errors.Refused,
    5: errors.Aborted,
}


def _make_error(code: int, rank: int, host: str, text: str) -> BaseException:
    if code == 1:
        return errors.PeerLost(text, rank, host)
    return _CLASSES.get(code, errors.SlipstreamError)(text)


_core.set_error_factory(_make_error)


@dataclass(eq=False)
class Job:
    """A process's membership in a set of processes that share a session."""

    membership: Membership
    session: _core.Session
    hosts: tuple[str, ...]  # per rank: what can share memory has the same
    reducers: tuple[dict[str, Any], ...] = ()  # name, addresses and incarnation of each
    keeper: Keeper | None = None  # rank 0's, if there are reducers
    small_costs: SmallCosts | None = None  # of small all-reduces, if reducers take part
    world: Any = None  # the Group of all ranks, made on first use: see `slipstream.comm.group.world`
    _farewells: list[Callable[[], None]] = field(default_factory=list)
    _groups: Counter[tuple[int | str, ...]] = field(default_factory=Counter)

    @property
    def rank(self) -> int:
        """This process's number."""
        return self.membership.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.membership.size

    def next_group_id(self, ranks: Sequence[int | str]) -> int:
        """The same number on every member: from the ranks, and how often they have made a group."""
        members: tuple[int | str, ...] = tuple(ranks)
        self._groups[members] += 1
        text = f"{self.membership.epoch}/{members}/{self._groups[members]}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") & ~(1 << 63)

    def close(self) -> None:
        """Leaves in good order; operations that still run fail with Aborted. Closing again does nothing."""
        _entered.discard(self)
        if self.keeper is not None:
            self.keeper.stop()
        self.session.close()
        while self._farewells:
            self._farewells.pop()()

    def when_left(self, farewell: Callable[[], None]) -> None:
        """Has ``farewell`` called once this process has left the job."""
        self._farewells.append(farewell)


_job: Job | None = None
_entered: set[Job] = set()
_lock = threading.RLock()


def _forget_after_fork() -> None:
    """A forked child (a data loader's worker, say) is no rank: it has its parent's sockets but not its threads."""
    global _job, _lock
    _lock = threading.RLock()
    for job in _entered:
        _core.leak(job.session)
    _entered.clear()
    _job = None


os.register_at_fork(after_in_child=_forget_after_fork)


def current() -> Job:
    """The running job; SlipstreamError if `init` has not been called."""
    if _job is None:
        raise errors.SlipstreamError("slipstream is not initialized: call slipstream.init() first")
    return _job


@atexit.register
def _leave_all() -> None:
    for job in list(_entered):
        job.close()


def init(
    *, rank: int | None = None, size: int | None = None, store: Any = None, settings: Settings | None = None
) -> None:
    """Joins the job, once; a second call does nothing. Arguments and errors are those of `enter`."""
    global _job
    with _lock:
        if _job is None:
            _job = enter(rank=rank, size=size, store=store, settings=settings)


def enter(
    *, rank: int | None = None, size: int | None = None, store: Any = None, settings: Settings | None = None
) -> Job:
    """Joins a job, beside those this process is in.

    Rank, size and meeting point come from the environment (``slipstream run``, torchrun, Open MPI, Slurm, a
    shared file; docs/architecture.md) unless ``rank`` and ``size`` are given; ``store`` is a
    ``torch.distributed`` store to meet through. Without any of these the job is this process alone.
    Raises ValueError for a malformed environment, Timeout naming ranks that did not come, Refused for a wrong
    secret.
    """
    settings = settings or Settings.from_environment()
    member = join(settings, rank=rank, size=size, torch_store=store)
    try:
        job = _start(settings, member)
    finally:
        member.close()
    _entered.add(job)
    try:
        for attendant in attendants():
            attendant(job, settings)
    except BaseException:
        job.close()
        raise
    return job


def _start(settings: Settings, member: Membership) -> Job:
    cores = len(os.sched_getaffinity(0))
    session = _core.Session(
        member.rank,
        member.size,
        f"{member.job}/{member.epoch}",
        member.secret,
        heartbeat=settings.heartbeat,
        timeout=settings.timeout,
        lanes=settings.lanes,
        round_robin=settings.dealing == "round_robin",
        zero_copy=settings.zero_copy != "off",
        lend_from=settings.zero_copy if isinstance(settings.zero_copy, int) else 0,
        threads=settings.threads,
        congestion=settings.congestion,
        cpus=chosen_cpus(settings, one_host=len(set(member.host_ids)) == 1),
        spin_us=_SPIN_US if member.local_size <= cores else 0,
    )
    keeper = None
    if settings.reducers and member.size > 1 and member.rank == 0:
        request = Request(f"{member.job}/{member.epoch}", member.size, _reducer_lanes(settings))
        keeper = Keeper(settings.reducers, reducer_secret(settings, member.secret), request)
    try:
        hosts, reducers = _open(settings, member, session, keeper)
    except BaseException:
        session.close()
        raise
    job = Job(member, session, hosts, reducers, keeper)
    if reducers:
        try:
            _use_reducers(job, settings)
        except BaseException:
            job.close()
            raise
    return job


def _reducer_lanes(settings: Settings) -> int:
    """Connections to each reducer: all together as many as to one other worker."""
    return -(-settings.lanes // len(settings.reducers))


def _use_reducers(job: Job, settings: Settings) -> None:
    """Has the session split all-reduces between the workers and the reducers."""
    member = job.membership
    group = job.session.make_group(job.next_group_id(["reducers"]), list(range(job.size)))
    small = build("all_reduce", "recursive_doubling", job.rank, job.size)
    star = worker(job.rank, job.size)
    _core.use_reducers(
        job.session,
        group,
        f"{member.job}/{member.epoch}",
        reducer_secret(settings, member.secret),
        [(one["name"], one["addresses"], one["incarnation"]) for one in job.reducers],
        _core.Plan.compile(star.rank, star.size, star.blocks, *star.encode()),
        _core.Plan.compile(small.rank, small.size, small.blocks, *small.encode()),
        settings.reducer_heartbeat,
        _reducer_lanes(settings),
    )
    if len(set(job.hosts)) == job.size:
        job.small_costs = calibrate(job.session, group, job.rank, job.size)
    if job.keeper is not None:
        job.keeper.watch(job.session)


def _open(
    settings: Settings, member: Membership, session: _core.Session, keeper: Keeper | None
) -> tuple[tuple[str, ...], tuple[dict[str, Any], ...]]:
    """Listens, tells the other ranks where, and starts the engine. Returns who shares memory, and the reducers."""
    one_host = len(set(member.host_ids)) == 1
    if settings.transport == "shm" and not one_host:
        raise ValueError("SLIPSTREAM_TRANSPORT: shm needs all ranks on one host; use auto")
    use_shm = settings.transport != "tcp"
    use_tcp = member.size > 1 and not (use_shm and one_host)
    mine: dict[str, Any] = {"host": socket.gethostname(), "shm": "", "addresses": [], "port": 0}
    if use_shm and member.size > 1:
        mine["shm"] = session.listen_shm()
    if use_tcp:
        bind = bind_address(settings.interface, one_host=one_host)
        mine["port"] = session.listen_tcp(bind)
        mine["addresses"] = [bind] if one_host else advertised_addresses(settings.interface)
    mine["reducers"] = keeper.register_all() if keeper is not None else []
    everyone = [json.loads(text) for text in exchange(member, json.dumps(mine).encode())]
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
    session.start(peers)
    hosts = member.host_ids if use_shm else [str(r) for r in range(member.size)]
    return tuple(hosts), tuple(everyone[0]["reducers"])


def shutdown() -> None:
    """Leaves the job; operations that still run fail with Aborted. May be followed by another `init`."""
    global _job
    with _lock:
        job, _job = _job, None
    if job is not None:
        job.close()


def is_initialized() -> bool:
    """Whether this process is in a job."""
    return _job is not None


def rank() -> int:
    """This process's number in the job, from 0."""
    return current().membership.rank


def size() -> int:
    """Number of processes in the job."""
    return current().membership.size


def local_rank() -> int:
    """This process's number on its host."""
    return current().membership.local_rank


def local_size() -> int:
    """Number of the job's processes on this host."""
    return current().membership.local_size


def cross_rank() -> int:
    """The number of this host among the hosts that have this local rank."""
    return current().membership.cross_rank


def cross_size() -> int:
    """Number of hosts that have this local rank."""
    return current().membership.cross_size
