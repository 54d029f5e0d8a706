"""How the survivors of a failure agree who they are, and go on as a smaller job.

The lowest rank that lives leads. It serves a store at the place that it told everybody at init; the others come there,
and say that they are there. Who has not come is asked, over the failed session's authenticated listeners, whether it
lives: who does not answer is left behind. When all others are there the leader says who is in, and they start a new
session through the same store. If another rank dies meanwhile they begin again; if the leader, with the next one.

Two halves of a job that do not hear each other must not both go on. Of two equal ones that is the half with rank 0. The
other one goes on if all that it misses are known to be gone: their meeting places refuse connections. A rank that has
gone on keeps its old place open for that, as long as it is in a job that came from the old one and half of the old
ranks may still come.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from slipstream.base.errors import HEARD_NOBODY, Aborted, PeerLost, Refused, SlipstreamError, Timeout
from slipstream.comm.membership import job as jobs
from slipstream.comm.membership.failures import sendable
from slipstream.comm.membership.job import Job
from slipstream.comm.membership.meeting import is_gone
from slipstream.comm.rendezvous.join import Membership, exchange, local_layout
from slipstream.comm.rendezvous.store import Store, connect_any
from slipstream.comm.rendezvous.store_server import StoreServer

__all__ = ["announce", "is_of_shrink", "shrink"]

_GOES_ON = "goes on with those ranks that live (shrink)"
_LOOK = 0.25  # seconds between looks at who has come
_DIAL = 2.0  # seconds of one attempt to reach the leader
_ASK = 10.0  # seconds in which a rank that lives answers, if the heartbeat is longer
_PART = 5.0  # seconds the leader waits for the others to hang up
_BATCH = 8  # ranks asked at once for the leader


def shrink(old: Job, timeout: float, at_least: int | None) -> Job:
    """Starts a job of those ranks of ``old`` that live; every one of them calls it.

    The job ``old`` fails if it has not yet, and is closed at the end. Ranks keep their order. Raises Aborted if fewer
    than ``at_least`` ranks are left, or if the others have gone on without this rank; Timeout if they did not come
    within ``timeout`` seconds. By default half of the ranks suffice if rank 0 is among them or all others are gone,
    else it takes more than half.
    """
    least = (old.size + 1) // 2 if at_least is None else at_least
    if not 1 <= least <= old.size:
        raise ValueError(f"at_least must be from 1 to {old.size}, got {least}")
    announce(old)
    _check_belongs(old)
    if old.size == 1:
        member = _member(old, [0], None, os.urandom(8).hex())
        new = jobs.replace(old, member, [0])
        jobs.succeed(old, new)
        return new
    survivors = _Survivors(old, time.monotonic() + timeout, least, may_split=at_least is not None)
    try:
        return survivors.go_on()
    finally:
        survivors.part()


def announce(old: Job, why: str = "") -> None:
    """Ends the job ``old`` if it has not failed yet: this rank is about to shrink it, and says why."""
    old.session.abort(sendable(f"rank {old.rank} {_GOES_ON}{f': {why}' if why else ''}"))


def is_of_shrink(error: Aborted) -> bool:
    """Whether a job has ended because a rank of it has called `shrink`, and waits for the others there."""
    return _GOES_ON in str(error)


def _check_belongs(old: Job) -> None:
    """Aborted if the others have given this rank up."""
    try:
        old.session.check()
    except PeerLost as error:
        if error.rank == old.rank and HEARD_NOBODY not in str(error):
            raise Aborted(f"rank {old.rank} cannot continue: the others have given it up ({error})") from None
    except SlipstreamError:
        pass


def _member(old: Job, ranks: list[int], store: Store | None, epoch: str) -> Membership:
    before = old.membership
    ids = [before.host_ids[r] for r in ranks]
    number = ranks.index(old.rank)
    place = local_layout(ids, number)
    return Membership(
        number,
        len(ranks),
        place.local_rank,
        place.local_size,
        place.cross_rank,
        place.cross_size,
        before.secret,
        before.job,
        store,
        epoch,
        before.start_timeout,
        ids,
    )


class _Survivors:
    """One survivor's view of the meeting."""

    def __init__(self, old: Job, deadline: float, least: int, *, may_split: bool) -> None:
        assert old.meeting is not None
        self.old, self.deadline, self.least, self.may_split = old, deadline, least, may_split
        self.meeting = old.meeting
        self.name = f"{old.membership.job}/{old.membership.epoch}"
        self.ask_seconds = min(_ASK, old.settings.heartbeat)
        self.silent: set[int] = set()  # who did not answer when last asked, and has not come since
        self.server: StoreServer | None = None
        self.store: Store | None = None
        self.attempt = 0

    def go_on(self) -> Job:
        leader = -1
        while True:
            found = self._find_leader()
            if found != leader:
                leader, self.attempt = found, 0
            try:
                if not self._reach(leader):
                    continue
                ranks, nonce = self._decide() if leader == self.old.rank else self._hear()
                return self._start(ranks, nonce)
            except PeerLost as error:
                self._check_time(f"ranks died while the others went on without them, the last: {error}")
                self.attempt += 1
                self._hang_up()

    def part(self) -> None:
        """Ends the meeting for this rank."""
        self._hang_up()
        if self.server is not None:
            self.server.close(_PART)

    def _hang_up(self) -> None:
        if self.store is not None:
            with contextlib.suppress(SlipstreamError):
                self.store.leave()
            self.store = None

    def _left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _check_time(self, what: str) -> None:
        if not self._left():
            raise Timeout(f"shrink on rank {self.old.rank}: {what}")

    def _alive(self, ranks: list[int]) -> list[int]:
        """Who answers. One that has let its time pass without an answer gets but a moment from then on."""
        probe, again = self.old.session.probe, self.silent.intersection(ranks)
        alive = probe([r for r in ranks if r not in again], self.ask_seconds)
        if again:
            alive += probe(sorted(again), min(_LOOK, self.ask_seconds))
        self.silent = self.silent.union(ranks).difference(alive)
        return alive

    def _find_leader(self) -> int:
        mine = self.old.rank
        for first in range(0, mine, _BATCH):
            alive = self._alive(list(range(first, min(first + _BATCH, mine))))
            if alive:
                return min(alive)
        return mine

    def _reach(self, leader: int) -> bool:
        """Connects to the leader's store. False: look again who leads."""
        secret, encrypt = self.old.membership.secret, self.old.settings.encrypt
        if leader == self.old.rank and self.server is None:
            listeners = self.meeting.share()
            if not listeners:
                raise Aborted(f"rank {leader} has left the job, and cannot continue")
            self.server = StoreServer("", secret, self.name, listeners=listeners, encrypt=encrypt)
        place = self.meeting.places[leader]
        addresses = [(address, place.port) for address in place.addresses]
        seconds = min(_DIAL, max(self._left(), 0.1))
        try:
            self.store = connect_any(
                lambda: addresses, secret, self.name, seconds, self.old.rank, "", encrypt=encrypt
            )
            self.store.enter(f"shrink {self.attempt}", self.old.rank, self.old.settings.host_name)
            return True
        except (Timeout, Refused, PeerLost) as error:
            self._check_time(f"rank {leader}, which leads, lives but has not called shrink ({error})")
            self._hang_up()
            time.sleep(_LOOK)
            return False

    def _key(self, what: object) -> str:
        return f"shrink/{self.attempt}/{what}"

    def _decide(self) -> tuple[list[int], str]:
        """As the leader: waits until all that live have come, and says who is in."""
        assert self.store is not None
        mine, size = self.old.rank, self.old.size
        here = {mine}
        while True:
            here.update(r for r in range(size) if r not in here and self._has_come(r))
            self.silent -= here
            # Who does not answer is not waited for, but is in if it has come meanwhile.
            missing = [r for r in range(size) if r not in here and r not in self.silent]
            if not missing or not self._left():
                break
            if self._alive(missing):
                time.sleep(min(_LOOK, self._left()))
        ranks, nonce = sorted(here), os.urandom(8).hex()
        decision = {"ranks": ranks, "nonce": nonce, "least": self._least_of(ranks)}
        self.store.set(self._key("decision"), json.dumps(decision).encode())
        return self._accept(decision)

    def _least_of(self, ranks: list[int]) -> int:
        """How many these have to be: one more than half if the other half may go on, too."""
        if self.may_split or 2 * len(ranks) != self.old.size or 0 in ranks:
            return self.least
        missing = [place for rank, place in enumerate(self.meeting.places) if rank not in ranks]
        end = time.monotonic() + _DIAL
        while not all(is_gone(place, _DIAL) for place in missing):
            if time.monotonic() >= end:
                return self.least + 1
            time.sleep(_LOOK)  # one that was just killed may still be closing what it had open
        return self.least

    def _has_come(self, rank: int) -> bool:
        assert self.store is not None
        try:
            self.store.get(self._key(rank), 0.0)
        except Timeout:
            return False
        return True

    def _hear(self) -> tuple[list[int], str]:
        """As one of the others: says that it is here, and waits for the leader's word."""
        assert self.store is not None
        self.store.set(self._key(self.old.rank), b"here")
        # The leader may have come later than this rank, and waits as long as this rank does.
        limit = self._left() + self.old.settings.start_timeout
        try:
            decision: dict[str, Any] = json.loads(self.store.get(self._key("decision"), limit))
        except Timeout:
            text = f"the rank that leads has not said within {limit:g} s who goes on"
            raise Timeout(f"shrink on rank {self.old.rank}: {text}") from None
        return self._accept(decision)

    def _accept(self, decision: dict[str, Any]) -> tuple[list[int], str]:
        ranks: list[int] = decision["ranks"]
        old = self.old
        if old.rank not in ranks:
            raise Aborted(f"rank {old.rank} came too late: ranks {ranks} have continued without it")
        least = max(self.least, decision["least"])
        if len(ranks) < least:
            raise Aborted(
                f"only {len(ranks)} of {old.size} ranks are left (ranks {ranks}), fewer than {least}, and the others "
                f"may have continued without them: shrink(at_least={len(ranks)}) continues nevertheless"
            )
        return ranks, decision["nonce"]

    def _start(self, ranks: list[int], nonce: str) -> Job:
        """Starts the new job with those that are in. PeerLost (of the old job's rank) if one of them dies meanwhile."""
        assert self.store is not None
        new: Job | None = None
        try:
            member = _member(self.old, ranks, self.store, nonce)
            new = jobs.replace(self.old, member, ranks)
            exchange(member, b"started", "not all survivors have started the new job")
        except BaseException:
            if new is not None:
                new.close(tell=False)
            raise
        jobs.succeed(self.old, new)
        return new
