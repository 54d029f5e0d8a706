"""What the store's server knows of each of its callers, and the bytes that go to them."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.comm.rendezvous.store_starts import Start

if TYPE_CHECKING:
    from slipstream._core import Records

__all__ = ["Bad", "Client", "Gather"]

_SEALED = 1 << 18  # bytes of text at once


class Bad(Exception):
    """The client broke the protocol: cut it off."""


@dataclass(eq=False)
class Gather:
    """All clients that wait for the same prefix and count, and which of its keys are missing."""

    prefix: bytes
    count: int
    missing: set[int]
    waiters: set[Client] = field(default_factory=set)


@dataclass(eq=False)
class Client:
    """A connection."""

    sock: socket.socket
    peer: str
    born: float
    hello: bytes = b""
    nonce: bytes = b""
    trusted: bool = False
    inbox: bytearray = field(default_factory=bytearray)
    reserved: int = 0  # bytes of the request being received, counted against MAX_TOTAL
    outbox: list[memoryview] = field(default_factory=list)  # to be sealed, if there are records
    wire: list[memoryview] = field(default_factory=list)  # as it goes out
    encrypt: bool = False  # as its hello says
    differs: bool = False  # from what the server wants
    records: Records | None = None
    waits_for: bytes | Gather | None = None
    deadline: float = 0.0
    closed: bool = False
    start: Start | None = None  # that it has entered, as `rank`
    rank: int = -1

    @property
    def owed(self) -> bool:
        """It waits for a reply, or for the rest of one."""
        return self.waits_for is not None or bool(self.outbox) or bool(self.wire)

    def put(self, parts: Iterable[bytes]) -> None:
        """What `flush` sends."""
        waiting = self.wire if self.records is None else self.outbox
        waiting += [memoryview(part) for part in parts if part]

    def flush(self) -> None:
        """Sends what the socket takes."""
        while self.wire or self.outbox:
            if not self.wire:
                self._seal()
            try:
                sent = self.sock.sendmsg(self.wire)
            except (BlockingIOError, InterruptedError):
                return
            while self.wire and sent >= len(self.wire[0]):
                sent -= len(self.wire.pop(0))
            if sent:
                self.wire[0] = self.wire[0][sent:]

    def _seal(self) -> None:
        """Some of what is to go out: a reply that others get, too, is not copied as a whole for each of them."""
        assert self.records is not None
        text, left = [], _SEALED
        while self.outbox and left:
            part = self.outbox[0][:left]
            text.append(part)
            left -= len(part)
            self.outbox[0] = self.outbox[0][len(part) :]
            if not self.outbox[0]:
                self.outbox.pop(0)
        self.wire.append(memoryview(self.records.seal(b"".join(text))))

    def opened(self, data: bytes) -> bytes:
        """The text of records that are complete with these bytes."""
        assert self.records is not None
        try:
            return self.records.open(data)
        except ValueError as error:
            raise Bad(str(error)) from None
