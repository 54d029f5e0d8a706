"""Jobs: `enter` joins one, `init` makes one the process's own, and the rest says who is who in that.

A process is in one job by `init`; the torch backend enters more, one for every default process group.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipstream import _core
from slipstream.base import errors
from slipstream.base.files import raise_file_limit
from slipstream.base.job_observers import job_observers
from slipstream.base.log import speak_as
from slipstream.base.settings import Settings
from slipstream.comm.membership.failures import last_words, make_error, parting_words, retold
from slipstream.comm.membership.meeting import Meeting, MeetingPlace
from slipstream.comm.membership.opening import open_session
from slipstream.comm.membership.options import link_options
from slipstream.comm.reducers.job_reducers import JobReducers
from slipstream.comm.rendezvous.join import Membership, given_up, join, when_in_doubt
from slipstream.plan.topology import Network

if TYPE_CHECKING:
    from slipstream.comm.measuring.network import Measured
    from slipstream.comm.tuning.job_tuning import JobTuning

__all__ = [
    "Job",
    "cross_rank",
    "cross_size",
    "current",
    "current_or_only",
    "enter",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "replace",
    "shutdown",
    "size",
    "succeed",
]

_core.set_error_factory(make_error)


@dataclass(eq=False, repr=False)
class Job:
    """A process's membership in a set of processes that share a session."""

    membership: Membership
    session: _core.Session
    hosts: tuple[str, ...]  # per rank: what can share memory has the same
    cpus: tuple[frozenset[int], ...]  # per rank: those of its host that it may run on
    names: tuple[str, ...]  # per rank: what its host calls itself
    nonce: bytes  # of this start; every rank has contributed to it
    reducers: JobReducers
    settings: Settings
    meeting: Meeting | None  # for the survivors of a failure, if there are other ranks
    tuning: JobTuning | None = None  # if anything is tuned
    collecting: Meeting | None = None  # rank 0's listeners for what the others record
    collector: MeetingPlace | None = None  # where these are, if there are other ranks
    questions: Meeting | None = None  # where ranks are asked how they are doing, if there are others
    left_open: list[Meeting] = field(default_factory=list)  # of the jobs before, for who comes too late
    measured: Measured | None = None  # of the network, if there are several hosts
    former_ranks: tuple[int, ...] = ()  # after a shrink, per rank: its number in the job before
    world: Any = None  # the Group of all ranks, made on first use by `slipstream.world`
    _last_acts: list[Callable[[], None]] = field(default_factory=list)
    _farewells: list[Callable[[], None]] = field(default_factory=list)
    groups_made: dict[tuple[int, ...], dict[int, None]] = field(
        default_factory=dict
    )  # by sorted ranks and number

    def __repr__(self) -> str:
        return f"<Job {self.membership.job!r}: this is rank {self.rank} of {self.size}>"

    @property
    def rank(self) -> int:
        """This process's number."""
        return self.membership.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.membership.size

    @property
    def network(self) -> Network:
        """What plans take the network between the hosts for."""
        if self.measured is None:
            return Network()
        from slipstream.comm.measuring.network import classified  # jobs of several hosts need it

        return classified(self.measured)

    def is_crowded(self, ranks: Sequence[int]) -> bool:
        """Whether one of the hosts has more of these ranks than processors that they may run on."""
        cpus: dict[str, set[int]] = {}
        for rank in ranks:
            cpus.setdefault(self.hosts[rank], set()).update(self.cpus[rank])
        here = Counter(self.hosts[rank] for rank in ranks)
        return any(here[host] > len(found) for host, found in cpus.items())

    def make_group(self, purpose: str) -> _core.Group:
        """A native group of all ranks, for what the library itself does as the job starts."""
        return self.session.make_group(self.group_id([purpose], 1), list(range(self.size)))

    def group_id(self, ranks: Sequence[int | str], number: int | str) -> int:
        """The id of the group that these ranks make as their ``number``-th: the same on every member, in any order."""
        members = sorted(ranks, key=str)
        text = f"{self.membership.epoch}/{tuple(members)}/{number}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") & ~(1 << 63)

    def close(self, *, tell: bool = True) -> None:
        """Leaves in good order; operations that still run fail with Aborted. Closing again does nothing.

        A failed job waits up to 2 s for ranks that do not know yet why, unless they need not be told (``tell``).
        """
        _entered.discard(self)
        acts, self._last_acts = self._last_acts, []
        with contextlib.ExitStack() as rest:  # all of it happens, whatever raises
            rest.callback(
                setattr, self, "world", None
            )  # it knows this job: the session's files go with the last reference
            rest.callback(self.reducers.forget_group)
            for farewell in self._farewells:
                rest.callback(farewell)
            self._farewells = []
            rest.callback(lambda: self.session.close(parting_words(), tell))
            rest.callback(self.close_meeting)
            rest.callback(self.reducers.stop)
            for act in acts if tell else ():
                rest.callback(_act, act)

    def close_meeting(self) -> None:
        """Listens no more for survivors, nor for ranks that a shrink has left behind."""
        for meeting in (self.meeting, self.collecting, self.questions):
            if meeting is not None:
                meeting.close()
        while self.left_open:
            self.left_open.pop().close()

    def before_leaving(self, act: Callable[[], None]) -> None:
        """Has ``act`` called just before this process leaves the job in good order; the latest first."""
        self._last_acts.append(act)

    def when_left(self, farewell: Callable[[], None]) -> None:
        """Has ``farewell`` called once this process has left the job."""
        self._farewells.append(farewell)


def _act(act: Callable[[], None]) -> None:
    with contextlib.suppress(errors.SlipstreamError):  # of a job that has failed
        act()


_job: Job | None = None
_entered: set[Job] = set()
_lock = threading.RLock()


def _forget_after_fork() -> None:
    """A forked child (a data loader's worker, say) is no rank: it has its parent's sockets but not its threads."""
    global _job, _lock
    _lock = threading.RLock()
    for job in _entered:
        job.close_meeting()
        _core.leak(job.session)
    _entered.clear()
    _job = None


os.register_at_fork(after_in_child=_forget_after_fork)


def current() -> Job:
    """The running job; SlipstreamError if `init` has not been called."""
    if _job is None:
        raise errors.SlipstreamError(
            "slipstream is not initialized: call slipstream.init() or hvd.init() first"
        )
    return _job


def current_or_only() -> Job:
    """The job of `init`; without one the only job that the process is in, such as that of torch.distributed.

    Raises SlipstreamError if there is none, or more than one.
    """
    if _job is None and len(_entered) == 1:
        (job,) = _entered
        return job
    if _job is None and _entered:
        raise errors.SlipstreamError(
            f"this process is in {len(_entered)} jobs, and none of them is that of slipstream.init()"
        )
    return current()


@atexit.register
def _leave_all() -> None:
    """Leaves in good order at the end of the process, whatever its daemon threads still wait for."""
    if _entered:
        _say_nothing_of_aborted_threads()
    words = last_words()
    for job in list(_entered):
        if words:  # the others learn it whether they wait for this rank or not
            job.session.abandon(words)
        job.close()


def _say_nothing_of_aborted_threads() -> None:
    """A daemon thread whose operation ends with the process is no failure, and Python ends it without a word, too.

    Text that a daemon thread writes at this moment can even end the process: with SIGABRT, if the interpreter finds
    the stream's lock taken when it flushes it.
    """
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, errors.Aborted):
            before(args)

    threading.excepthook = hook


def init(
    *, rank: int | None = None, size: int | None = None, store: Any = None, settings: Settings | None = None
) -> None:
    """Joins the job that this process was started for; a second call does nothing while the job lives.

    ``rank``, ``size``: this process's number and how many there are. Default: what the environment says, as set by
    ``slipstream run``, torchrun, Open MPI or Slurm, or by SLIPSTREAM_RENDEZVOUS; without any of these the job is this
    process alone. ``store``: a ``torch.distributed`` store to meet through, with ``rank`` and ``size``. ``settings``:
    instead of those of the SLIPSTREAM_* variables.
    Raises ValueError for a malformed environment, Timeout naming ranks that did not come, Refused for a wrong secret.
    After a failure of the job it raises that error again, with the cure: `shutdown` comes first, on all ranks.

    >>> slipstream.init()
    >>> slipstream.is_initialized()
    True
    """
    global _job
    with _lock:
        if _job is None:
            _job = enter(rank=rank, size=size, store=store, settings=settings)
        else:
            _check_lives(_job)


def _check_lives(job: Job) -> None:
    try:
        job.session.check()
    except errors.SlipstreamError as error:
        cure = "init() does not begin a failed job anew: call shutdown() first, on all ranks"
        lost = "to go on without a lost rank use hvd.elastic.run, or Group.shrink"
        raise retold(error, f"{error}. {cure}; {lost}") from None


def enter(
    *, rank: int | None = None, size: int | None = None, store: Any = None, settings: Settings | None = None
) -> Job:
    """Joins a job, beside those this process is in.

    Rank, size and meeting point come from the environment (``slipstream run``, torchrun, Open MPI, Slurm, a
    shared file; docs/settings.md) unless ``rank`` and ``size`` are given; ``store`` is a
    ``torch.distributed`` store to meet through. Without any of these the job is this process alone.
    Raises ValueError for a malformed environment, Timeout naming ranks that did not come, Refused for a wrong
    secret.
    """
    settings = settings or Settings.from_environment()
    member = join(settings, rank=rank, size=size, torch_store=store)
    _speak_as(member, None)
    try:
        job = _start(settings, member)
    except BaseException as error:
        member.close(given_up(error, member.store))
        raise
    member.close()
    _attend(job)
    job.when_left(when_in_doubt(member, lambda text: _doubt(job, text)))
    return job


def _tuning(settings: Settings, member: Membership, remembered: str | None) -> JobTuning | None:
    if settings.autotune == "off":
        return None
    from slipstream.comm.tuning.job_tuning import JobTuning  # few jobs tune

    return JobTuning(settings, member.rank, remembered)


def _doubt(job: Job, text: str) -> None:
    """Ends the job on all ranks: it may have met with the ranks of another one."""
    if job in _entered:
        job.session.abort(f"{text}. This job met with one of them, and may have ranks of both")


def _attend(job: Job) -> None:
    _entered.add(job)
    try:
        for observer in job_observers():
            observer(job, job.settings)
    except BaseException:
        job.close()
        raise


def _speak_as(member: Membership, old: Job | None) -> None:
    """Warnings begin with the rank in this job, unless the process is in others than the ``old`` one it replaces."""
    if _entered <= {old} or (old is not None and old is _job):
        speak_as(member.rank)


def replace(old: Job, member: Membership, former_ranks: Sequence[int]) -> Job:
    """Starts the job of ``member`` in the place of ``old``, which has failed and stays open."""
    _speak_as(member, old)
    job = _start(old.settings, member, old.measured)
    job.former_ranks = tuple(former_ranks)
    _attend(job)
    return job


def succeed(old: Job, new: Job) -> None:
    """Closes ``old``, all but its meeting place; if it was the process's own job, ``new`` is from now on.

    The place shows those that come to it late that the others have gone on, not ended. Less than half of a job's ranks
    cannot go on in any case, so the places of jobs that more than half have left are closed. That of ``old`` stays till
    the next time: it is not certain that all of ``new`` have left it.
    """
    global _job
    for meeting in old.left_open:
        if len(meeting.places) < 2 * new.size:
            meeting.close()
        else:
            new.left_open.append(meeting)
    old.left_open = []
    if old.meeting is not None:
        new.left_open.append(old.meeting.move())
    with _lock:
        if _job is old:
            _job = new
    old.close(tell=False)


def _start(settings: Settings, member: Membership, measured: Measured | None = None) -> Job:
    """``measured``: of the network between the hosts, if it is known; else it is measured now."""
    raise_file_limit()  # torchrun and others leave it at what the shell had, often 1024
    reducers = JobReducers(settings, member)
    opened = open_session(settings, member, reducers)
    job = Job(
        member,
        opened.session,
        opened.hosts,
        opened.cpus,
        opened.names,
        opened.nonce,
        reducers,
        settings,
        opened.meeting,
        tuning=_tuning(settings, member, opened.remembered),
        collecting=opened.collecting,
        collector=opened.collector,
        questions=opened.questions,
        measured=measured,
    )
    try:
        if measured is None and len(set(member.host_ids)) > 1:
            from slipstream.comm.measuring.network import measure

            job.measured = measure(job.session, job.make_group("network"), job.hosts)
        if reducers.known:
            group = job.make_group("reducers")
            reducers.connect(job.session, group, link_options(settings), job.hosts)
    except BaseException:
        job.close()
        raise
    return job


def shutdown() -> None:
    """Leaves the job; operations that still run fail with Aborted. May be followed by another `init`.

    >>> slipstream.shutdown()
    >>> slipstream.init()
    """
    global _job
    with _lock:
        job, _job = _job, None
    if job is not None:
        job.close()


def is_initialized() -> bool:
    """Whether this process is in a job.

    >>> slipstream.is_initialized()
    True
    """
    return _job is not None


def rank() -> int:
    """This process's number in the job, from 0. Raises SlipstreamError before `init`.

    >>> slipstream.rank()  # on rank 0
    0
    """
    return current().membership.rank


def size() -> int:
    """Number of processes in the job. Raises SlipstreamError before `init`.

    >>> slipstream.size()
    2
    """
    return current().membership.size


def local_rank() -> int:
    """This process's number on its host, from 0. Raises SlipstreamError before `init`.

    >>> slipstream.local_rank()  # on rank 0
    0
    """
    return current().membership.local_rank


def local_size() -> int:
    """Number of the job's processes on this host. Raises SlipstreamError before `init`.

    >>> slipstream.local_size()
    2
    """
    return current().membership.local_size


def cross_rank() -> int:
    """The number of this host among the hosts that have this local rank. Raises SlipstreamError before `init`.

    >>> slipstream.cross_rank()
    0
    """
    return current().membership.cross_rank


def cross_size() -> int:
    """Number of hosts that have this local rank. Raises SlipstreamError before `init`.

    >>> slipstream.cross_size()
    1
    """
    return current().membership.cross_size
