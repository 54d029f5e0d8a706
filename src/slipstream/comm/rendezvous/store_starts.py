"""Who has come to a start of the job, as the store's server knows it: one holder a rank, and which ranks are lost.

A *start* is one meeting of all ranks (an epoch). Its nonce is part of every key and of the name of the session, so that
processes of two starts never talk to each other. A process whose launcher names another start (start_identity.py) is
refused, and nobody else. A second process that claims a rank is refused, and as nobody can tell which of the two
belongs to the job, so are all that have not left the start yet; those that have are in doubt (second_claims.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from slipstream.comm.rendezvous.requests import Entry
from slipstream.comm.rendezvous.second_claims import SecondClaims
from slipstream.comm.rendezvous.start_identity import Named, difference

__all__ = ["Start", "Starts"]


@dataclass
class _Holder:
    token: bytes
    who: str
    identity: Mapping[str, str]
    left: bool = False


@dataclass(eq=False)
class Start:
    """One meeting of all ranks."""

    name: str
    nonce: str = field(default_factory=lambda: os.urandom(8).hex())
    holders: dict[int, _Holder] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)  # in the order of their loss
    conflict: str = ""
    met: float | None = None  # when the first rank had all it came for
    identity: dict[str, Named] = field(default_factory=dict)  # what its launcher calls it

    @property
    def epoch(self) -> str:
        """As in `Membership.epoch`."""
        return f"{self.name}.{self.nonce}"

    def leave(self, rank: int, now: float) -> None:
        """The rank has all it came for."""
        self.holders[rank].left = True
        self.met = now if self.met is None else self.met

    def vouched(self, rank: int) -> bool:
        """The launcher's names say that the holder of ``rank`` and another process here are of one start."""
        own = self.holders[rank]
        return any(
            name in own.identity and named.who != own.who for name, named in self.identity.items()
        ) or any(one is not own and one.identity.keys() & own.identity for one in self.holders.values())

    def over(self) -> bool:
        """All that have come have met."""
        return bool(self.holders) and all(one.left for one in self.holders.values())

    def lose(self, rank: int, how: str) -> None:
        """The rank's process is gone, or has given up. Another one may take its place."""
        holder = self.holders.pop(rank)
        self.lost.setdefault(rank, f"rank {rank} ({holder.who}) {how}")


class Starts:
    """The starts of one store."""

    def __init__(
        self,
        again: bool = False,
        owner: Entry | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._again = again  # programs that follow one another may meet here
        self._owner = owner  # the rank that serves the store
        self._clock = clock
        self._starts: dict[str, Start] = {}
        self._ended: dict[int, str] = {}
        self._refused: dict[int, str] = {}
        self.claims = SecondClaims()

    def all(self) -> Iterable[Start]:
        """All that are known."""
        return self._starts.values()

    def enter(self, entry: Entry) -> tuple[Start, str]:
        """Returns the start, and why the process is refused ("" if it is not)."""
        start = self._starts.get(entry.name) or self._new(entry.name)
        at, holder = self._holder(start, entry.rank)
        other = holder is not None and holder.token != entry.token
        again = (other and start is at and start.over()) or entry.rank in start.lost
        if again and self._again:  # what the others of a start that has failed were told stays
            start = at = self._new(entry.name)
            other = False
        text = difference(at.identity, entry.identity, entry.who)
        if text:
            self.claims.log(text)
            return start, text
        if other:
            return start, self._claimed_again(start, at, entry)
        if start.conflict:
            return start, start.conflict
        start.holders[entry.rank] = _Holder(entry.token, entry.who, entry.identity)
        for name, value in entry.identity.items():
            start.identity.setdefault(name, Named(value, entry.who))
        start.lost.pop(entry.rank, None)
        self._ended.pop(entry.rank, None)
        self._refused.pop(entry.rank, None)
        return start, ""

    def leave(self, start: Start, rank: int) -> None:
        """The rank has all it came for."""
        start.leave(rank, self._clock())

    def _new(self, name: str) -> Start:
        start = Start(name)
        if self._owner is not None:
            start.identity = {
                name: Named(value, self._owner.who) for name, value in self._owner.identity.items()
            }
        if name.isdigit() and not self._again:  # it is not new what the processes of the start before are
            start.met = min(
                (one.met for one in self._starts.values() if one.name.isdigit() and one.met is not None),
                default=None,
            )
        self._starts[name] = start
        return start

    def _claimed_again(self, start: Start, at: Start, entry: Entry) -> str:
        """``at``: the start in which another process has the rank. Returns what the newcomer is told."""
        holder = at.holders[entry.rank]
        text = (
            f"two processes claim to be rank {entry.rank} of this job: {holder.who}, and {entry.who}. Two jobs use one "
            "meeting point (MASTER_PORT, SLIPSTREAM_PORT or SLIPSTREAM_RENDEZVOUS), or a rank was started twice, or "
            "again without the others"
        )
        proven = at.vouched(entry.rank)
        if proven and not entry.identity.keys() & holder.identity:
            self.claims.log(text)
            return text
        if not start.over() and start is at:
            start.conflict = text
        if any(one.left for one in at.holders.values()):
            since_met = self._clock() - at.met if at.met is not None else 0.0
            self.claims.add(at.epoch, text, since_met, proven=proven)
        return text

    def _holder(self, start: Start, rank: int) -> tuple[Start, _Holder | None]:
        # Starts whose names are numbers follow one another: they have the same processes.
        others = self._starts.values() if start.name.isdigit() and not self._again else ()
        for one in (start, *(other for other in others if other.name.isdigit())):
            if rank in one.holders:
                return one, one.holders[rank]
        return start, None

    def rank_ended(self, rank: int, how: str) -> None:
        """The process of ``rank`` has ended, as its launcher says."""
        self._ended[rank] = f"rank {rank} {how}"

    def refuse(self, rank: int, why: str) -> None:
        """The process of ``rank`` cannot join as it was started: nobody is to wait for it."""
        self._refused[rank] = why

    def bad_news(self, start: Start, size: int) -> tuple[int | None, str] | None:
        """Why a start of ``size`` ranks can come to nothing: who is lost (None: it is refused), and a text."""
        if start.conflict:
            return None, start.conflict
        for rank, text in start.lost.items():
            return rank, text
        for rank, text in self._refused.items():
            if rank < size and rank not in start.holders:
                return None, text
        for rank, text in self._ended.items():
            if rank < size and rank not in start.holders:
                return (
                    rank,
                    f"{text} and has not joined: every rank must call slipstream.init (or init_process_group)",
                )
        return None

    def forget(self, prefix: bytes) -> None:
        """Drops the start whose keys begin with ``prefix``."""
        for name, start in list(self._starts.items()):
            if prefix.startswith(f"epoch/{name}.{start.nonce}/".encode()):
                del self._starts[name]
