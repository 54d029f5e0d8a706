"""The server of the job's key-value store: one thread, one selector, never blocked by one client.

After the handshake a client sends one request at a time and reads one reply:

    request   op u8, length u32, body      SET: key length u16, key, value     GET: milliseconds u32, key
                                           ADD: i64, key                       DELETE: prefix
                                           GATHER: milliseconds u32, n u32, prefix
                                           ASK: anything, of a server that answers, and does nothing else
              ENTER: the start and the rank of a caller (store_starts.py)    LEAVE: 0, and why it gives up
    reply     status u8, length u32, body  OK: result   LATE: (GATHER: missing ranks, u32 each)   ERROR: text
                                           LOST: rank u32, text             REFUSED: text

Where the caller and the server encrypt, all of that travels in records (docs/architecture.md, "Encryption").

A caller that has entered a start and hangs up without LEAVE is lost: who waits for others of that start hears of it.

Limits: key 512 B, value 16 MiB, 256 MiB in all (stored and being received), a gathered reply 64 MiB, 128
callers that have not proved themselves, 5 s each. A client that sends while it is owed a reply is cut off, so
what is held for a client is at most one request and one reply; replies to one gather share their bytes. A question
has at most 4 KiB, and who asks is cut off 5 s after it came.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from slipstream.base.errors import Refused
from slipstream.comm import handshake
from slipstream.comm.listening import listen_all
from slipstream.comm.store_clients import Bad, Client, Gather
from slipstream.comm.store_starts import ENTER_SIZE, Start, Starts

__all__ = ["MAX_KEY", "MAX_REPLY", "MAX_TOTAL", "MAX_VALUE", "StoreServer"]

MAX_KEY = 512
MAX_VALUE = 16 << 20
MAX_TOTAL = 256 << 20
MAX_REPLY = 64 << 20
MAX_GATHER = 1 << 20
MAX_QUESTION = 4 << 10
MAX_STRANGERS = 128
STRANGER_SECONDS = 5.0
STRANGER_GRACE = 0.25  # a full waiting room is not emptied faster than honest callers can answer
_READ = 1 << 20
KEY_OVERHEAD = 128  # what a stored pair costs beyond its bytes

SET, GET, ADD, GATHER, DELETE, ASK, ENTER, LEAVE = 1, 2, 3, 4, 5, 6, 7, 8
OK, LATE, ERROR, LOST, REFUSED = 0, 1, 2, 3, 4

HEADER = struct.Struct("<BI")
SET_HEAD = struct.Struct("<H")
ADD_HEAD = struct.Struct("<q")
GATHER_HEAD = struct.Struct("<II")
GET_HEAD = LENGTH = LOST_HEAD = struct.Struct("<I")

_log = logging.getLogger("slipstream.store")


class StoreServer:
    """Serves the store of one job on ``bind`` (numeric addresses; port 0 means any) until `close`.

    Every caller must prove that it knows ``secret`` (raw bytes) and belongs to ``job``. Raises OSError when
    it cannot listen there. `address` is the first (host, port) it listens on.

    ``listeners``: sockets that listen already, from `listen_all`; they become the server's.
    ``again``: when all ranks have met, other processes may meet here as the same ranks.
    ``encrypt``: all connections are encrypted; None: each as its caller wants.
    With ``answer`` it stores nothing, but answers each question (its bytes, who asks, whether encrypted) with what
    that returns, which runs on the server's thread and must not raise.
    """

    def __init__(
        self,
        bind: str | Sequence[str],
        secret: bytes,
        job: str,
        port: int = 0,
        answer: Callable[[bytes, str, bool], bytes] | None = None,
        again: bool = False,
        listeners: list[socket.socket] | None = None,
        encrypt: bool | None = False,
    ) -> None:
        self._encrypt = encrypt
        self._answer = answer
        self._secret = secret
        self._job = handshake.job_id(job)
        self._data: dict[bytes, bytes] = {}
        self._used = 0
        self._getters: dict[bytes, set[Client]] = {}
        self._gathers: dict[bytes, dict[int, Gather]] = {}
        self._strangers: OrderedDict[Client, None] = OrderedDict()
        self._clients: set[Client] = set()
        self._starts = Starts(again)
        self._news: list[tuple[int, str]] = []  # ranks that have ended, from other threads
        self._alarms: list[tuple[float, int, Client]] = []
        self._alarm_count = 0
        self._log_credit, self._log_time = 20.0, time.monotonic()
        self._listeners = listeners or listen_all([bind] if isinstance(bind, str) else bind, port)
        self.address: tuple[str, int] = self._listeners[0].getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        self._accepting, self._accept_pause = True, 0.0
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._serve, name="slipstream-store", daemon=True)
        self._thread.start()

    def close(self, linger: float = 0.0) -> None:
        """Stops serving and closes every connection; harmless when repeated.

        With ``linger`` it goes on until all clients have hung up, for at most that many seconds.
        """
        if self._stop_at is not None:
            return
        self._stop_at = time.monotonic() + linger
        with contextlib.suppress(OSError):  # the thread may have seen it already, and be gone
            self._wake.send(b"x")
        self._thread.join()

    def rank_ended(self, rank: int, how: str) -> None:
        """Any thread: tells those who wait for ``rank`` that its process has ended, and how ("was killed")."""
        self._news.append((rank, how))
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    # ---- the thread ----

    def _serve(self) -> None:
        try:
            while not self._stopped():
                self._turn()
        finally:
            for client in list(self._clients):
                self._drop(client)
            for sock in (*self._listeners, self._wake, self._woken):
                sock.close()
            self._selector.close()

    def _stopped(self) -> bool:
        if self._stop_at is None:
            return False
        members = len(self._clients) - len(self._strangers)
        return members == 0 or time.monotonic() >= self._stop_at

    def _turn(self) -> None:
        self._set_accepting(time.monotonic())
        accept = False
        for key, events in self._selector.select(self._next_alarm()):
            client = key.data
            if client is None:
                if key.fileobj is self._woken:
                    self._woken.recv(16)
                    self._hear_of_ends()
                accept = accept or key.fileobj in self._listeners
            elif not client.closed:
                self._attend(client, events)
        now = time.monotonic()
        if accept:  # after the known callers have been heard, so that a flood does not push honest ones out
            self._accept(now)
        while self._alarms and self._alarms[0][0] <= now:
            _, _, client = heapq.heappop(self._alarms)
            self._ring(client, now)

    def _next_alarm(self) -> float | None:
        now = time.monotonic()
        times = [self._alarms[0][0]] if self._alarms else []
        if self._stop_at is not None:
            times.append(self._stop_at)
        if not self._accepting:
            times.append(self._accept_pause)
        return max(0.0, min(times) - now) if times else None

    def _alarm(self, client: Client, when: float) -> None:
        self._alarm_count += 1
        heapq.heappush(self._alarms, (when, self._alarm_count, client))
        if len(self._alarms) > 64 + 4 * len(self._clients):  # mostly of waits that ended early
            self._alarms = [
                alarm
                for alarm in self._alarms
                if not alarm[2].closed and (not alarm[2].trusted or alarm[0] == alarm[2].deadline)
            ]
            heapq.heapify(self._alarms)

    def _ring(self, client: Client, now: float) -> None:
        if client.closed:
            return
        if not client.trusted:
            if now >= client.born + STRANGER_SECONDS:
                self._refuse(client, "it did not prove itself in time")
        elif self._answer is not None:
            if now >= client.deadline:
                self._drop(client)
        elif client.waits_for is not None and now >= client.deadline:
            wanted = client.waits_for
            missing = sorted(wanted.missing) if isinstance(wanted, Gather) else []
            self._unwait(client)
            self._reply(client, LATE, struct.pack(f"<{len(missing)}I", *missing))

    # ---- strangers ----

    def _set_accepting(self, now: float) -> None:
        accepting = now >= self._accept_pause
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            if now - oldest.born >= STRANGER_GRACE:
                self._refuse(oldest, "too many callers have not proved themselves")
            else:
                accepting, self._accept_pause = False, oldest.born + STRANGER_GRACE
        if accepting != self._accepting:
            self._accepting = accepting
            for listener in self._listeners:
                if accepting:
                    self._selector.register(listener, selectors.EVENT_READ)
                else:
                    self._selector.unregister(listener)

    def _accept(self, now: float) -> None:
        for listener in self._listeners:
            self._accept_at(listener, now)

    def _accept_at(self, listener: socket.socket, now: float) -> None:
        for _ in range(16):
            if len(self._strangers) >= MAX_STRANGERS:
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                _log.warning("store: cannot accept a connection: %s", error)
                self._accept_pause = now + 0.1
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = Client(sock, f"{address[0]}:{address[1]}", now)
            self._clients.add(client)
            self._strangers[client] = None
            self._selector.register(sock, selectors.EVENT_READ, client)
            self._alarm(client, now + STRANGER_SECONDS)

    def _refuse(self, client: Client, why: str) -> None:
        now = time.monotonic()
        self._log_credit = min(20.0, self._log_credit + (now - self._log_time))
        self._log_time = now
        if self._log_credit >= 1.0:
            self._log_credit -= 1.0
            _log.warning("store: refused %s: %s", client.peer, why)
        self._drop(client)

    def _meet(self, client: Client) -> None:
        """Moves a stranger through the handshake as far as its bytes go."""
        if not client.hello and len(client.inbox) >= handshake.HELLO_SIZE:
            client.hello = bytes(client.inbox[: handshake.HELLO_SIZE])
            del client.inbox[: handshake.HELLO_SIZE]
            hello = handshake.parse_hello(
                client.hello, job=self._job, purpose=handshake.PURPOSE_STORE, target=0
            )
            client.rank, client.encrypt = hello.rank, hello.encrypt
            client.differs = self._encrypt is not None and hello.encrypt != self._encrypt
            client.nonce = os.urandom(handshake.NONCE_SIZE)
            proof = handshake.server_mac(self._secret, client.hello, client.nonce, differs=client.differs)
            self._send(client, client.nonce + proof)
        if client.hello and len(client.inbox) >= handshake.MAC_SIZE:
            expected = handshake.client_mac(self._secret, client.hello, client.nonce, differs=client.differs)
            if not handshake.macs_equal(bytes(client.inbox), expected):
                raise Refused("it does not know the secret of this job")
            if client.differs:
                self._differs(client)
            client.inbox.clear()
            client.trusted = True
            client.deadline = client.born + STRANGER_SECONDS  # for a question; other requests set their own
            del self._strangers[client]
            self._send(client, handshake.ACCEPTED)
            if client.encrypt:
                client.records = handshake.records(self._secret, client.hello, client.nonce, client=False)

    def _differs(self, client: Client) -> None:
        """Refuses who encrypts and should not, or the other way, and tells those who wait for that rank."""
        if client.rank != handshake.NOBODY:
            rank = f"rank {client.rank} at {client.peer}"
            own = "who serves the store of this job"
            self._starts.refuse(client.rank, handshake.difference(bool(self._encrypt), rank, own))
            for start in self._starts.all():
                self._tell(start)
        raise Refused(handshake.difference(bool(self._encrypt), "it", "this process"))

    # ---- bytes ----

    def _attend(self, client: Client, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(client)
            if events & selectors.EVENT_READ and not client.closed:
                self._read(client)
        except (Refused, Bad) as error:
            if isinstance(error, handshake.OtherVersion):
                self._send(client, handshake.version_notice())
            self._refuse(client, str(error))
        except OSError as error:
            self._drop(client) if client.trusted else self._refuse(client, f"connection failed: {error}")

    def _read(self, client: Client) -> None:
        if not client.trusted:
            bound = handshake.MAC_SIZE if client.hello else handshake.HELLO_SIZE
        elif client.reserved:
            bound = HEADER.size + client.reserved
        else:
            bound = HEADER.size
        want = bound - len(client.inbox)
        try:
            data = client.sock.recv(min(want, _READ) if client.records is None else _READ)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            if client.trusted:
                self._drop(client)
            else:
                self._refuse(client, "it hung up before proving itself")
            return
        if client.records is None:
            self._take(client, data)
            return
        text = client.opened(data)
        while text and not client.closed:
            want = HEADER.size + client.reserved - len(client.inbox)
            self._take(client, text[:want])
            text = text[want:]

    def _take(self, client: Client, data: bytes) -> None:
        """The next bytes of the handshake or of a request, and of nothing that follows it."""
        client.inbox += data
        if not client.trusted:
            self._meet(client)
            return
        if client.owed:
            raise Bad("it sent a request while one was pending")
        if not client.reserved and len(client.inbox) == HEADER.size:
            self._admit(client)
        if client.reserved and len(client.inbox) == HEADER.size + client.reserved:
            op, body = client.inbox[0], memoryview(bytes(client.inbox))[HEADER.size :]
            self._used -= client.reserved
            client.reserved = 0
            client.inbox.clear()
            self._execute(client, op, body)

    def _admit(self, client: Client) -> None:
        op, length = HEADER.unpack(client.inbox)
        if op not in ((SET, GET, ADD, GATHER, DELETE, ENTER, LEAVE) if self._answer is None else (ASK,)):
            raise Bad(f"unknown request {op}")
        limit = {
            SET: SET_HEAD.size + MAX_KEY + MAX_VALUE,
            ASK: MAX_QUESTION,
            ENTER: ENTER_SIZE,
            LEAVE: MAX_QUESTION,
        }.get(op, GATHER_HEAD.size + MAX_KEY)
        if not 0 < length <= limit:
            raise Bad(f"a request of {length} bytes")
        if self._used + length > MAX_TOTAL:
            raise Bad(f"the store is full ({MAX_TOTAL >> 20} MiB)")
        client.reserved = length
        self._used += length

    def _reply(self, client: Client, status: int, body: bytes = b"") -> None:
        self._send(client, HEADER.pack(status, len(body)), body)

    def _send(self, client: Client, *parts: bytes) -> None:
        client.put(parts)
        try:
            self._flush(client)
        except OSError:
            self._drop(client)

    def _flush(self, client: Client) -> None:
        client.flush()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.wire else 0)
        if self._selector.get_key(client.sock).events != events:
            self._selector.modify(client.sock, events, client)

    def _drop(self, client: Client) -> None:
        if client.closed:
            return
        client.closed = True
        self._unwait(client)
        self._used -= client.reserved
        self._strangers.pop(client, None)
        self._clients.discard(client)
        self._selector.unregister(client.sock)
        client.sock.close()
        if client.start is not None:
            self._gave_up(client, "ended, or was killed, before all ranks had met")

    # ---- starts ----

    def _enter(self, client: Client, body: bytes) -> None:
        if client.start is not None:
            raise Bad("it entered twice")
        start, rank, objection = self._starts.enter(body)
        if objection:
            self._reply(client, REFUSED, objection.encode())
            self._tell(start)
            return
        client.start, client.rank = start, rank
        self._reply(client, OK, start.nonce.encode())

    def _leave(self, client: Client, why: str) -> None:
        if client.start is not None:
            if why:
                self._gave_up(client, f"gave up: {why}")
            else:
                client.start.leave(client.rank)
            client.start = None
        self._reply(client, OK)

    def _gave_up(self, client: Client, how: str) -> None:
        start, client.start = client.start, None
        assert start is not None
        start.lose(client.rank, how)
        self._tell(start)

    def _hear_of_ends(self) -> None:
        while self._news:
            self._starts.rank_ended(*self._news.pop(0))
        for start in self._starts.all():
            self._tell(start)

    def _tell(self, start: Start) -> None:
        """Answers those of a start who wait for what cannot come any more."""
        for client in list(self._clients):
            if client.start is start and isinstance(client.waits_for, Gather):
                self._give_bad_news(client, client.waits_for.count)

    def _give_bad_news(self, client: Client, count: int) -> bool:
        news = self._starts.bad_news(client.start, count) if client.start is not None else None
        if news is None:
            return False
        rank, text = news
        self._unwait(client)
        if rank is None:
            self._reply(client, REFUSED, text.encode())
        else:
            self._reply(client, LOST, LOST_HEAD.pack(rank) + text.encode())
        return True

    # ---- requests ----

    def _execute(self, client: Client, op: int, body: memoryview) -> None:
        try:
            if op == SET:
                (length,) = SET_HEAD.unpack_from(body)
                key, value = bytes(body[2 : 2 + length]), bytes(body[2 + length :])
                if len(key) != length:
                    raise Bad("a malformed request")
                self._reply(client, *self._put(_key(key), value))
            elif op == GET:
                (wait,) = GET_HEAD.unpack_from(body)
                self._get(client, _key(bytes(body[GET_HEAD.size :])), wait / 1000)
            elif op == ADD:
                (amount,) = ADD_HEAD.unpack_from(body)
                self._reply(client, *self._add(_key(bytes(body[ADD_HEAD.size :])), amount))
            elif op == GATHER:
                wait, count = GATHER_HEAD.unpack_from(body)
                self._gather(client, _key(bytes(body[GATHER_HEAD.size :])), count, wait / 1000)
            elif op == ENTER:
                self._enter(client, bytes(body))
            elif op == LEAVE:
                self._leave(client, bytes(body[1:]).decode(errors="replace"))
            elif self._answer is not None:
                self._reply(client, OK, self._answer(bytes(body), client.peer, client.encrypt))
            else:
                self._reply(client, OK, LENGTH.pack(self._delete(_key(bytes(body)))))
        except struct.error:
            raise Bad("a malformed request") from None

    def _put(self, key: bytes, value: bytes) -> tuple[int, bytes]:
        if len(value) > MAX_VALUE:
            return ERROR, f"the value has more than {MAX_VALUE} bytes".encode()
        old = self._data.get(key)
        more = len(value) - len(old) if old is not None else len(key) + len(value) + KEY_OVERHEAD
        if self._used + more > MAX_TOTAL:
            return ERROR, f"the store is full ({MAX_TOTAL >> 20} MiB)".encode()
        self._used += more
        self._data[key] = value
        for getter in list(self._getters.get(key, ())):
            self._unwait(getter)
            self._reply(getter, OK, value)
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
            self._reply(client, OK, self._data[key])
            return
        self._getters.setdefault(key, set()).add(client)
        self._wait(client, key, wait)

    def _gather(self, client: Client, prefix: bytes, count: int, wait: float) -> None:
        if not 0 < count <= MAX_GATHER:
            self._reply(client, ERROR, f"gather of {count} keys".encode())
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
            self._reply(client, status, body)

    def _delete(self, prefix: bytes) -> int:
        self._starts.forget(prefix)
        keys = [key for key in self._data if key.startswith(prefix)]
        for key in keys:
            self._used -= len(key) + len(self._data.pop(key)) + KEY_OVERHEAD
        for gathers in self._gathers.values():
            for gather in gathers.values():
                gather.missing = {
                    i for i in range(gather.count) if b"%s/%d" % (gather.prefix, i) not in self._data
                }
        return len(keys)

    def _wait(self, client: Client, wanted: bytes | Gather, wait: float) -> None:
        client.waits_for = wanted
        client.deadline = time.monotonic() + wait
        self._alarm(client, client.deadline)

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
