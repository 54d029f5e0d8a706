"""The job's key-value store, as its server keeps it (requests.py has the bytes, server.py says how they arrive).

A caller that has entered a start and hangs up without LEAVE is lost: who waits for others of that start hears of it.

Replies to one gather share their bytes.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence

from slipstream.comm.rendezvous.requests import (
    ADD,
    ADD_HEAD,
    DELETE,
    ENTER,
    ENTER_SIZE,
    ERROR,
    GATHER,
    GATHER_HEAD,
    GET,
    GET_HEAD,
    LATE,
    LEAVE,
    LENGTH,
    LOST,
    LOST_HEAD,
    MAX_GATHER,
    MAX_KEY,
    MAX_REPLY,
    MAX_TOTAL,
    MAX_VALUE,
    MAX_WORDS,
    OK,
    REFUSED,
    SET,
    SET_HEAD,
    Entry,
)
from slipstream.comm.rendezvous.server import Quota, Server
from slipstream.comm.rendezvous.store_clients import Bad, Client, Gather
from slipstream.comm.rendezvous.store_starts import Start, Starts

__all__ = ["StoreServer"]

KEY_OVERHEAD = 128  # what a stored pair costs beyond its bytes


class StoreServer:
    """Serves the store of one job until `close`: arguments as for `Server`.

    ``again``: when all ranks have met, other processes may meet here as the same ranks. ``owner``: the rank that
    serves. `claims` knows of ranks that have met and are claimed again.
    """

    def __init__(
        self,
        bind: str | Sequence[str],
        secret: bytes,
        job: str,
        port: int = 0,
        again: bool = False,
        listeners: list[socket.socket] | None = None,
        encrypt: bool | None = False,
        owner: Entry | None = None,
    ) -> None:
        self.requests: Mapping[int, int] = {
            SET: SET_HEAD.size + MAX_KEY + MAX_VALUE,
            ENTER: ENTER_SIZE,
            LEAVE: MAX_WORDS,
            **dict.fromkeys((GET, ADD, GATHER, DELETE), GATHER_HEAD.size + MAX_KEY),
        }
        self._quota = Quota(MAX_TOTAL)
        self._data: dict[bytes, bytes] = {}
        self._getters: dict[bytes, set[Client]] = {}
        self._gathers: dict[bytes, dict[int, Gather]] = {}
        self._starts = Starts(again, owner)
        self.claims = self._starts.claims
        self._news: list[tuple[int, str]] = []  # ranks that have ended, from other threads
        self._server = Server(self, self._quota, bind, secret, job, port, listeners, encrypt)
        self.address = self._server.address
        self._server.start()

    def close(self, linger: float = 0.0) -> None:
        """Stops serving, as `Server.close`."""
        self._server.close(linger)

    def forget(self) -> None:
        """In a forked child: as `Server.forget`."""
        self._server.forget()

    def rank_ended(self, rank: int, how: str) -> None:
        """Any thread: tells those who wait for ``rank`` that its process has ended, and how ("was killed")."""
        self._news.append((rank, how))
        self._server.wake()

    # ---- what the server calls, on its thread ----

    def execute(self, client: Client, op: int, body: memoryview) -> None:
        """One request."""
        if op == SET:
            (length,) = SET_HEAD.unpack_from(body)
            key, value = bytes(body[2 : 2 + length]), bytes(body[2 + length :])
            if len(key) != length:
                raise Bad("a malformed request")
            self._server.reply(client, *self._put(_key(key), value))
        elif op == GET:
            (wait,) = GET_HEAD.unpack_from(body)
            self._get(client, _key(bytes(body[GET_HEAD.size :])), wait / 1000)
        elif op == ADD:
            (amount,) = ADD_HEAD.unpack_from(body)
            self._server.reply(client, *self._add(_key(bytes(body[ADD_HEAD.size :])), amount))
        elif op == GATHER:
            wait, count = GATHER_HEAD.unpack_from(body)
            self._gather(client, _key(bytes(body[GATHER_HEAD.size :])), count, wait / 1000)
        elif op == ENTER:
            self._enter(client, bytes(body))
        elif op == LEAVE:
            self._leave(client, bytes(body[1:]).decode(errors="replace"))
        else:
            self._server.reply(client, OK, LENGTH.pack(self._delete(_key(bytes(body)))))

    def admitted(self, client: Client) -> None:
        """Each of its requests has a deadline of its own."""

    def dropped(self, client: Client) -> None:
        """It waits for nothing any more, and is lost to the start that it has entered."""
        self._unwait(client)
        if client.start is not None:
            self._gave_up(client, "ended, or was killed, before all ranks had met")

    def overdue(self, client: Client) -> None:
        """What it waits for has not come in time."""
        wanted = client.waits_for
        if wanted is not None:
            missing = sorted(wanted.missing) if isinstance(wanted, Gather) else []
            self._unwait(client)
            self._server.reply(client, LATE, struct.pack(f"<{len(missing)}I", *missing))

    def differs(self, client: Client, why: str) -> None:
        """Tells those who wait for that rank."""
        self._starts.refuse(client.rank, why)
        self._tell_all()

    def woken(self) -> None:
        """Ranks have ended."""
        while self._news:
            self._starts.rank_ended(*self._news.pop(0))
        self._tell_all()

    # ---- starts ----

    def _enter(self, client: Client, body: bytes) -> None:
        if client.start is not None:
            raise Bad("it entered the start twice")
        entry = Entry.unpack(body)
        start, objection = self._starts.enter(entry)
        if objection:
            self._server.reply(client, REFUSED, objection.encode())
            self._tell(start)
            return
        client.start, client.rank = start, entry.rank
        self._server.reply(client, OK, start.nonce.encode())

    def _leave(self, client: Client, why: str) -> None:
        if client.start is not None:
            if why:
                self._gave_up(client, f"gave up: {why}")
            else:
                self._starts.leave(client.start, client.rank)
            client.start = None
        self._server.reply(client, OK)

    def _gave_up(self, client: Client, how: str) -> None:
        start, client.start = client.start, None
        assert start is not None
        start.lose(client.rank, how)
        self._tell(start)

    def _tell_all(self) -> None:
        for start in self._starts.all():
            self._tell(start)

    def _tell(self, start: Start) -> None:
        """Answers those of a start who wait for what cannot come any more."""
        for client in list(self._server.clients):
            if client.start is start and isinstance(client.waits_for, Gather):
                self._give_bad_news(client, client.waits_for.count)

    def _give_bad_news(self, client: Client, count: int) -> bool:
        news = self._starts.bad_news(client.start, count) if client.start is not None else None
        if news is None:
            return False
        rank, text = news
        self._unwait(client)
        if rank is None:
            self._server.reply(client, REFUSED, text.encode())
        else:
            self._server.reply(client, LOST, LOST_HEAD.pack(rank) + text.encode())
        return True

    # ---- keys ----

    def _put(self, key: bytes, value: bytes) -> tuple[int, bytes]:
        if len(value) > MAX_VALUE:
            return ERROR, f"the value has more than {MAX_VALUE} bytes".encode()
        old = self._data.get(key)
        more = len(value) - len(old) if old is not None else len(key) + len(value) + KEY_OVERHEAD
        if not self._quota.take(more):
            return ERROR, f"the store is full ({self._quota.most >> 20} MiB)".encode()
        self._data[key] = value
        for getter in list(self._getters.get(key, ())):
            self._unwait(getter)
            self._server.reply(getter, OK, value)
        prefix, _, number = key.rpartition(b"/")
        if prefix in self._gathers and number.isdigit():
            for gather in list(self._gathers[prefix].values()):
                gather.missing.discard(int(number))
                if not gather.missing:
                    self._finish(gather)
        return OK, b""

    def _add(self, key: bytes, amount: int) -> tuple[int, bytes]:
        try:
            total = int(self._data.get(key, b"0")) + amount
        except ValueError:
            return ERROR, b"add on a value that is no number"
        if not -(1 << 63) <= total < 1 << 63:
            return ERROR, b"add overflows 64 bits"
        status, text = self._put(key, b"%d" % total)
        return (status, text) if status != OK else (OK, ADD_HEAD.pack(total))

    def _get(self, client: Client, key: bytes, wait: float) -> None:
        if key in self._data:
            self._server.reply(client, OK, self._data[key])
            return
        self._getters.setdefault(key, set()).add(client)
        self._wait(client, key, wait)

    def _gather(self, client: Client, prefix: bytes, count: int, wait: float) -> None:
        if not 0 < count <= MAX_GATHER:
            self._server.reply(client, ERROR, f"gather of {count} keys".encode())
            return
        gather = self._gathers.setdefault(prefix, {}).get(count)
        if gather is None:
            missing = {i for i in range(count) if b"%s/%d" % (prefix, i) not in self._data}
            gather = self._gathers[prefix][count] = Gather(prefix, count, missing)
        gather.waiters.add(client)
        self._wait(client, gather, wait)
        if not gather.missing:
            self._finish(gather)
        else:
            self._give_bad_news(client, count)

    def _finish(self, gather: Gather) -> None:
        values = [self._data.get(b"%s/%d" % (gather.prefix, i)) for i in range(gather.count)]
        gather.missing = {i for i, value in enumerate(values) if value is None}
        if gather.missing:  # deleted meanwhile
            return
        present = [value for value in values if value is not None]
        if sum(map(len, present)) > MAX_REPLY:
            status, body = ERROR, f"gather of more than {MAX_REPLY} bytes".encode()
        else:
            parts = (part for value in present for part in (LENGTH.pack(len(value)), value))
            status, body = OK, b"".join(parts)
        for client in list(gather.waiters):
            self._unwait(client)
            self._server.reply(client, status, body)

    def _delete(self, prefix: bytes) -> int:
        self._starts.forget(prefix)
        keys = [key for key in self._data if key.startswith(prefix)]
        for key in keys:
            self._quota.take(-len(key) - len(self._data.pop(key)) - KEY_OVERHEAD)
        for gathers in self._gathers.values():
            for gather in gathers.values():
                gather.missing = {
                    i for i in range(gather.count) if b"%s/%d" % (gather.prefix, i) not in self._data
                }
        return len(keys)

    def _wait(self, client: Client, wanted: bytes | Gather, wait: float) -> None:
        client.waits_for = wanted
        self._server.set_deadline(client, time.monotonic() + wait)

    def _unwait(self, client: Client) -> None:
        wanted, client.waits_for = client.waits_for, None
        if isinstance(wanted, bytes):
            getters = self._getters[wanted]
            getters.discard(client)
            if not getters:
                del self._getters[wanted]
        elif isinstance(wanted, Gather):
            wanted.waiters.discard(client)
            if not wanted.waiters:
                del self._gathers[wanted.prefix][wanted.count]
                if not self._gathers[wanted.prefix]:
                    del self._gathers[wanted.prefix]


def _key(key: bytes) -> bytes:
    if not 0 < len(key) <= MAX_KEY:
        raise Bad(f"a key of {len(key)} bytes")
    return key
