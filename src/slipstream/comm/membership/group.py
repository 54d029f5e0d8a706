"""Groups of ranks, and the plans each group has made so far."""

from __future__ import annotations

import hashlib
import itertools
import operator
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream import _core
from slipstream.base.arguments import as_int, as_seconds
from slipstream.base.dtypes import WireType, wire_share
from slipstream.base.log import Log
from slipstream.base.spans import format_spans
from slipstream.base.training import saved_bytes
from slipstream.comm.membership import job as jobs
from slipstream.comm.membership.failures import sendable
from slipstream.plan.choose import Choice, carries, choose
from slipstream.plan.registry import build
from slipstream.plan.steps import Kind, Space
from slipstream.plan.topology import Topology, numbered

if TYPE_CHECKING:
    from slipstream.comm.tuning.group_tuning import GroupTuning
    from slipstream.comm.tuning.job_tuning import JobTuning
    from slipstream.comm.tuning.size_class import SizeClass

__all__ = ["Compiled", "Group", "check_group", "world"]

_log = Log("slipstream.plans")


@dataclass(frozen=True)
class Compiled:
    """A plan ready to run: ``operation`` is "collective/algorithm", ``reason`` says why it is this one.

    ``reducers``: reducers take part. It is an all-reduce then, whatever the collective. ``tuned_by``: what tunes
    these operations, and is asked for the plan of each call. ``requests`` are kept for more calls.
    """

    native: _core.Plan
    operation: str
    chunk_bytes: int
    reason: str = ""
    reducers: bool = False
    tuned_by: SizeClass | None = None
    requests: dict[tuple[object, ...], _core.Request] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )


class Group:
    """An ordered set of ranks that run collectives together.

    ``ranks``: global ranks, default all; ``job``: default the one of `slipstream.init`. Every member makes the
    group, in the same order as its other groups with the same members. Raises ValueError if this rank is not a
    member or a rank is unknown or named twice, TypeError if ``ranks`` are no integers.

    >>> group = slipstream.Group([0, 1])
    >>> slipstream.all_reduce(numpy.ones(2), group=group)
    array([2., 2.])
    """

    def __init__(self, ranks: Sequence[int] | None = None, job: jobs.Job | None = None) -> None:
        if job is not None and not isinstance(job, jobs.Job):
            raise TypeError(f"job must be a slipstream job, not {type(job).__name__}")
        current = job or jobs.current()
        members = tuple(range(current.size)) if ranks is None else _members(ranks, current)
        same = tuple(sorted(members))
        made = current.groups_made.setdefault(same, {})
        while True:
            number = len(made) + 1
            self._set_up(current, members, number)
            if number not in made:  # else another thread, or a signal's handler, has taken it meanwhile
                break
        # No call stands between the look and this, so CPython changes no thread and runs no handler there. It is the
        # last statement: if a handler breaks this off before, the group has not been, and may be made again.
        made[number] = None

    @classmethod
    def named(cls, purpose: str, ranks: Sequence[int], current: jobs.Job) -> Group:
        """A group for what the library does by itself: members make one of each purpose, at any time."""
        made = object.__new__(cls)
        made._set_up(current, _members(ranks, current), purpose)
        return made

    def beside(self, purpose: str) -> Group:
        """A group of the same ranks for what the library does by itself, when each rank comes to need it."""
        return Group.named(f"{purpose} of {self.id}", self.ranks, self.job)

    def _set_up(self, current: jobs.Job, ranks: tuple[int, ...], number: int | str) -> None:
        """``number``: how many groups of these ranks there have been, with this one; 0 for the one of `world`.

        Text stands for a purpose that there is one group for.
        """
        self.job, self.ranks = current, ranks
        self.session = current.session
        self.native = current.session.make_group(current.group_id(ranks, number), list(ranks))
        self.id = self.native.id
        self.rank = self.native.rank
        self.size = len(self.ranks)
        # the ranks if they do not ascend: the members compare them
        self.unsorted = () if list(self.ranks) == sorted(self.ranks) else self.ranks
        hosts = numbered(current.hosts[r] for r in self.ranks)
        hierarchy = current.settings.hierarchy
        self.topology = Topology(hosts, current.network, current.is_crowded(self.ranks), hierarchy)
        self.token: NDArray[np.uint8] = np.zeros(1, dtype=np.uint8)  # what a barrier reduces
        self.spans_hosts = len(set(hosts)) > 1
        self.plans: dict[tuple[str, int, int], Compiled] = {}  # by collective, bits of the size, root
        self._wired: dict[tuple[str, int, WireType], Compiled] = {}  # those for data in a wire type
        self.quick = _core.QuickCalls(self.session)  # those of plain arrays that `plans` has requests for
        self._forced: dict[str, Choice] = {}
        self.authenticated = (
            itertools.count()
        )  # operations so far: see `slipstream.comm.rendezvous.authentication`
        self._tuning: GroupTuning | None = None  # made with the first plan that is tuned
        self._tunings = 0  # how many there have been before it
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Group of ranks {format_spans(self.ranks)}: this is rank {self.rank} of {self.size}>"

    def abort(self, reason: str) -> None:
        """Ends the job's operations on all its ranks: those that run and all later ones raise Aborted with ``reason``.

        Any rank and thread may call it, at any time. It is not for this group alone: all groups of the job end. The
        processes live on, and may go on together by `shrink`.
        """
        self.session.abort(sendable(f"rank {self.job.rank} aborted the job: {reason}"))

    def shrink(self, timeout: float = 60.0, at_least: int | None = None) -> Group:
        """After a failure: a new job of the ranks that live, and its group of all of them.

        Every survivor calls it, on any group of the job, typically when an operation has raised PeerLost. They
        agree who is left; ranks keep their order and are numbered anew from 0. If this is the job of
        `slipstream.init`, then `slipstream.rank`, `slipstream.world` and the like tell of the new one from then on.
        ``former_ranks`` of the new group says which rank of the old job each was. Operations and groups of the old
        job fail; smaller groups are made anew, with the new numbers. A rank that lives but does not call it within
        ``timeout`` seconds is left behind. Calling it without a failure aborts the job on all ranks.

        Raises Aborted if fewer than ``at_least`` ranks are left, or if the others have given this rank up; Timeout
        if the survivors do not meet in time. The default of ``at_least`` does not make two jobs of one, also if the
        network falls apart: it is more than half of the ranks, or half of them if rank 0 is among them or the
        processes of all others are known to have ended.
        """
        from slipstream.comm.membership.shrink import shrink  # it starts jobs, whose groups these are

        new = shrink(self.job, as_seconds("timeout", timeout), at_least)
        group = Group(job=new)
        new.world = group
        return group

    @property
    def former_ranks(self) -> tuple[int, ...]:
        """After `shrink`, for each rank of the new job: its rank in the job before. Else empty."""
        return self.job.former_ranks

    def compiled(self, collective: str, nbytes: int, root: int = 0) -> Compiled:
        """The plan for ``nbytes`` of data, chosen and compiled once per power of two."""
        key = (collective, nbytes.bit_length(), root)
        found = self.plans.get(key)
        if found is None:
            with self._lock:
                found = self.plans[key] = self._compile(*key)
            _log.debug(
                "%s below %d bytes: %s, in chunks of %d bytes: %s",
                collective,
                1 << key[1],
                found.operation,
                found.chunk_bytes,
                found.reason,
            )
        return found

    def compiled_for(self, wire: WireType, collective: str, nbytes: int, sent: int | None = None) -> Compiled:
        """The plan for ``nbytes`` of float32 data that travels as ``wire`` between hosts.

        ``sent``: the bytes that become fewer, unless they are ``nbytes``. ValueError if the program has chosen an
        algorithm (`use`) by which it cannot.
        """
        if not wire:
            return self.compiled(collective, nbytes)
        saved_bytes(int((nbytes if sent is None else sent) * (1 - wire_share(wire))))
        key = (collective, nbytes.bit_length(), wire)
        found = self._wired.get(key)
        if found is None:
            with self._lock:
                found = self._wired[key] = self._compile(collective, key[1], 0, wire)
        return found

    def _compile(
        self, collective: str, magnitude: int, root: int, wire: WireType = WireType.EXACT
    ) -> Compiled:
        forced = self._forced.get(collective)
        if forced is not None:
            if wire and not carries(collective, forced.algorithm):
                raise ValueError(f"{collective} by {forced.algorithm} cannot travel as {wire.name.lower()}")
            return self._compile_choice(collective, forced, root)
        reducers = self.job.reducers.for_choices(self)
        choice = choose(collective, (1 << magnitude) >> 1, self.topology, reducers, wire)
        tuning = self.job.tuning
        tuned = tuning and self._tune(tuning, collective, magnitude, wire, choice)
        return tuned or self._compile_choice(collective, choice, root)

    def _tune(
        self, tuning: JobTuning, collective: str, magnitude: int, wire: WireType, choice: Choice
    ) -> Compiled | None:
        from slipstream.comm.tuning.candidates import Traffic, is_tuned  # few jobs tune

        if not is_tuned(collective, magnitude, self.topology):
            return None
        self._tuning = self._tuning or self._start_tuning(tuning)
        tuner = self._tuning.start(Traffic(magnitude, wire), choice)
        compiled: Compiled = replace(tuner.compiled, tuned_by=tuner)
        return compiled

    def _compile_choice(self, collective: str, choice: Choice, root: int = 0) -> Compiled:
        if not choice.reducers:
            own = self.compile_as(collective, choice.algorithm, choice.chunk_bytes, root)
            return replace(own, reason=choice.reason)
        plan = build("all_reduce", choice.algorithm, self.rank, self.size, hosts=self.topology.hosts)
        native = _core.Plan.compile(self.rank, self.size, plan.blocks, *plan.encode(), split=True)
        return Compiled(native, f"{collective}/reducers", choice.chunk_bytes, choice.reason, reducers=True)

    def _start_tuning(self, tuning: JobTuning) -> GroupTuning:
        from slipstream.comm.tuning.group_tuning import GroupTuning  # few jobs tune

        group = weakref.ref(self)  # which holds what is made here

        def compile(choice: Choice) -> Compiled:
            found = group()
            assert found is not None  # its operations call
            made = found._compile_choice("all_reduce", choice)
            return replace(made, reason=choice.reason)

        job = self.job
        reducers = len(job.reducers.known) if job.reducers.for_choices(self) else 0
        native = self.beside(f"tuning {self._tunings}").native
        return GroupTuning(tuning, self.session, native, self.topology, reducers, compile)

    def barrier_plan(self) -> Compiled:
        """The plan of a barrier: that of the smallest all-reduce, under its own name."""
        way = self.compiled("all_reduce", 1)
        name = way.operation.replace("all_reduce", "barrier")
        found = self.plans[("barrier", 1, 0)] = replace(way, operation=name)
        return found

    def take_reducers(self) -> None:
        """Has this group's reductions go through the job's reducers, if there are any.

        One group of a job may: what reducers are given must come in one order on all ranks, and that of two groups is
        left open. Raises ValueError if there is one already, or if this is not all ranks in their order.
        """
        if list(self.ranks) != list(range(self.job.size)):
            raise ValueError("only a group of all ranks in their order may use the job's reducers")
        self.job.reducers.serve(self)

    def give_reducers(self, other: Group) -> None:
        """Has ``other``'s reductions go through the reducers, and no longer this group's.

        ``other``: of the same ranks. All ranks call this at the same place among the operations of both groups.
        """
        self.job.reducers.serve_instead(other)
        for group in (self, other):
            group._forget_plans()

    def _forget_plans(self) -> None:
        with self._lock:
            self.plans, self._wired = {}, {}
            self._tunings += self._tuning is not None
            self._tuning = None
            self.quick.clear()

    def compile_as(self, collective: str, algorithm: str, chunk_bytes: int, root: int = 0) -> Compiled:
        """Compiles a named algorithm, for tests and benchmarks."""
        plan = build(collective, algorithm, self.rank, self.size, root=root, hosts=self.topology.hosts)
        rows, deps = plan.encode()
        native = _core.Plan.compile(self.rank, self.size, plan.blocks, rows, deps)
        return Compiled(native, f"{collective}/{algorithm}", chunk_bytes)

    def use(self, collective: str, algorithm: str, chunk_bytes: int, *, reducers: bool = False) -> None:
        """Runs ``collective`` by this algorithm and chunk size from now on, whatever the size.

        For tests and benchmarks; every member must do the same. ``reducers``: beside the job's reducers.
        """
        with self._lock:
            self.plans = {
                key: plan for key, plan in self.plans.items() if key[0] not in (collective, "barrier")
            }
            self._wired = {key: plan for key, plan in self._wired.items() if key[0] != collective}
            self._forced[collective] = Choice(algorithm, chunk_bytes, "the program asks for it", reducers)
            self.quick.clear()
            for plan in (*self.plans.values(), *self._wired.values()):
                plan.requests.clear()  # those that are made anew are known to `quick` again
            _core.c_forget_kept(self.id)

    def point_to_point(self, kind: str, peer: int, chunk_bytes: int) -> Compiled:
        """The one-step plan of a send to, or a receive from, ``peer``."""
        key = (kind, peer, 0)
        found = self.plans.get(key)
        if found is None:
            step = [Kind.SEND if kind == "send" else Kind.RECV, peer, 0, 1, Space.IN, Space.OUT, 0]
            rows = np.array([step], dtype=np.int32)
            native = _core.Plan.compile(self.rank, self.size, 1, rows, np.empty(0, dtype=np.int32))
            found = self.plans[key] = Compiled(native, "send_recv", chunk_bytes)
        return found

    def ragged(self, collective: str, algorithm: str, room: int) -> Compiled:
        """A plan that forwards nothing, for messages of at most ``room`` bytes (`collectives.ragged`)."""
        key = (f"ragged {collective}", room, 0)
        found = self.plans.get(key)
        if found is None:
            found = self.plans[key] = self.compile_as(collective, algorithm, room)
        return found

    def channel(self, source: int, target: int, tag: int) -> int:
        """The id of a point-to-point channel between two ranks of the group; ValueError if it has no such rank."""
        for rank in (source, target):
            if not 0 <= rank < self.size:
                raise ValueError(f"{rank} is not a rank of a group of {self.size}")
        return _channel(self.id, self.ranks[source], self.ranks[target], as_int(tag))


def _members(ranks: Sequence[int], job: jobs.Job) -> tuple[int, ...]:
    try:
        members = tuple(map(operator.index, ranks))
    except TypeError:
        listed = isinstance(ranks, Sequence) and not isinstance(ranks, str)
        wrong = next((r for r in ranks if not hasattr(r, "__index__")), None) if listed else ranks
        wanted = "the ranks of a Group must be ints" if listed else "ranks must be a sequence of ints"
        raise TypeError(f"{wanted}, not {type(wrong).__name__}") from None
    made = f"Group({list(members)})"
    distinct = len(set(members)) == len(members)
    for rank in members:
        if not 0 <= rank < job.size:
            there = f"ranks 0 to {job.size - 1}" if job.size > 1 else "rank 0 alone"
            raise ValueError(f"rank {rank} of {made} does not exist: the job has {there}")
        if not distinct and members.count(rank) > 1:
            raise ValueError(f"rank {rank} is named twice in {made}")
    if job.rank not in members:
        raise ValueError(
            f"rank {job.rank} is not in {made}: only members make a group (`if slipstream.rank() in ranks`)"
        )
    return members


def check_group(name: str, value: object) -> None:
    """TypeError that names the argument ``name`` unless it is a Group, or None."""
    if value is None or isinstance(value, Group):
        return
    ranks = isinstance(value, list | tuple) and all(isinstance(r, int) for r in value)
    cure = f": slipstream.Group({list(value)})" if ranks else ""  # type: ignore[call-overload]
    raise TypeError(f"{name} must be a slipstream.Group, not {type(value).__name__}{cure}")


@lru_cache(maxsize=4096)
def _channel(group: int, source: int, target: int, tag: int) -> int:
    return _stable_hash(f"{group}/{source}/{target}/{tag}") | 1 << 63


def _stable_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def world() -> Group:
    """The group of all ranks. Raises SlipstreamError before `init`.

    >>> slipstream.world().ranks
    (0, 1)
    """
    current = jobs.current()
    if current.world is None:
        with _world_lock:
            _make_world(current)
    group: Group = current.world
    return group


_world_lock = threading.RLock()  # the first calls may come in several threads, and in handlers of signals


def _make_world(job: jobs.Job) -> None:
    made = Group.__new__(Group)
    made._set_up(job, tuple(range(job.size)), 0)
    made.take_reducers()
    # No call stands between the look and what follows, so no signal's handler runs there.
    if job.world is None:
        job.world = made
    else:  # a handler has made it meanwhile
        job.world.take_reducers()


def _forget_after_fork() -> None:
    global _world_lock
    _world_lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_after_fork)
