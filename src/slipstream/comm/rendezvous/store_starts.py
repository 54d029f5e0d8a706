"""Who has come to a start of the job, as the store's server knows it: one holder a rank, and which ranks are lost.

A *start* is one meeting of all ranks (an epoch). Its nonce is part of every key and of the name of the session, so that
processes of two starts never talk to each other. A second process that claims a rank is refused, and as nobody can
tell which of the two belongs to the job, so are all that have not left the start yet.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["ENTER_SIZE", "Start", "Starts", "pack_entry"]

_HEAD = struct.Struct("<I16sBB")  # rank, the process's token, length of the start's name, and of who it is
ENTER_SIZE = _HEAD.size + 510


def pack_entry(name: str, rank: int, token: bytes, who: str) -> bytes:
    """The body of an ENTER: ``name`` of the start, ``rank``, 16 bytes that only this process has, and who it is."""
    start, words = name.encode()[:255], who.encode()[:255]
    return _HEAD.pack(rank, token, len(start), len(words)) + start + words


@dataclass
class _Holder:
    token: bytes
    who: str
    left: bool = False


@dataclass(eq=False)
class Start:
    """One meeting of all ranks."""

    name: str
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    holders: dict[int, _Holder] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)  # in the order of their loss
    conflict: str = ""

    def leave(self, rank: int) -> None:
        """The rank has all it came for."""
        self.holders[rank].left = True

    def lose(self, rank: int, how: str) -> None:
        """The rank's process is gone, or has given up. Another one may take its place."""
        holder = self.holders.pop(rank)
        self.lost.setdefault(rank, f"rank {rank} ({holder.who}) {how}")


class Starts:
    """The starts of one store."""

    def __init__(self, again: bool = False) -> None:
        self._again = again  # programs that follow one another may meet here
        self._starts: dict[str, Start] = {}
        self._ended: dict[int, str] = {}
        self._refused: dict[int, str] = {}

    def all(self) -> Iterable[Start]:
        """All that are known."""
        return self._starts.values()

    def enter(self, body: bytes) -> tuple[Start, int, str]:
        """Takes an ENTER; returns the start, the rank, and why it is refused ("" if it is not).

        Raises struct.error for a body that is none.
        """
        rank, token, length, more = _HEAD.unpack_from(body)
        name = body[_HEAD.size : _HEAD.size + length].decode(errors="replace")
        who = body[_HEAD.size + length :].decode(errors="replace")
        if len(body) != _HEAD.size + length + more:
            raise struct.error("malformed")
        start = self._starts.setdefault(name, Start(name))
        holder = self._holder(start, rank)
        over = bool(start.holders) and all(one.left for one in start.holders.values())
        if holder is not None and holder.token != token and over and self._again:
            start = self._starts[name] = Start(name)
        elif holder is not None and holder.token != token:
            text = (
                f"two processes claim to be rank {rank} of this job: {holder.who}, and {who}. Two jobs use one meeting "
                "point (MASTER_PORT, SLIPSTREAM_PORT or SLIPSTREAM_RENDEZVOUS), or a rank was started twice, or again "
                "without the others"
            )
            if not all(one.left for one in start.holders.values()):
                start.conflict = text
            return start, rank, text
        if start.conflict:
            return start, rank, start.conflict
        start.holders[rank] = _Holder(token, who)
        start.lost.pop(rank, None)
        self._ended.pop(rank, None)
        self._refused.pop(rank, None)
        return start, rank, ""

    def _holder(self, start: Start, rank: int) -> _Holder | None:
        # Starts whose names are numbers follow one another: they have the same processes.
        others = self._starts.values() if start.name.isdigit() and not self._again else ()
        earlier = (other.holders.get(rank) for other in others if other.name.isdigit())
        return start.holders.get(rank) or next(filter(None, earlier), None)

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
                return rank, f"{text} and has not joined: every rank must call init"
        return None

    def forget(self, prefix: bytes) -> None:
        """Drops the start whose keys begin with ``prefix``."""
        for name, start in list(self._starts.items()):
            if prefix.startswith(f"epoch/{name}.{start.nonce}/".encode()):
                del self._starts[name]
