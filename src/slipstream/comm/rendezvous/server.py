"""A server of requests and replies: one thread, one selector, never blocked by one client.

A caller proves itself first (handshake.py). Then it sends one request at a time and reads one reply:

    request   op u8, length u32, body      reply     status u8, length u32, body

What requests there are, and what they mean, is the service's part. Where the caller and the server encrypt, all of that
travels in records (docs/architecture.md, "Encryption").

A client that sends while it is owed a reply is cut off, so what is held for a client is at most one request and one
reply.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import math
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from slipstream.base.errors import Refused
from slipstream.base.log import Log
from slipstream.comm.rendezvous import admission, handshake
from slipstream.comm.rendezvous.listening import listen_all
from slipstream.comm.rendezvous.requests import HEADER
from slipstream.comm.rendezvous.store_clients import Bad, Client

__all__ = ["Quota", "Server", "Service"]

_READ = 1 << 20
_STOPPING = 5.0  # seconds that its thread has to stop

_log = Log("slipstream.store")


class Quota:
    """Bytes that may be held: requests that arrive, and what the service keeps."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0

    def take(self, count: int) -> bool:
        """Counts ``count`` bytes more (or fewer), unless they are too many."""
        if self.used + count > self.most:
            return False
        self.used += count
        return True


class Service(Protocol):
    """What a `Server` serves. All methods run on the server's thread."""

    requests: Mapping[int, int]  # the requests there are, with the most bytes of their bodies

    def execute(self, client: Client, op: int, body: memoryview) -> None:
        """A request is here. Raises Bad or struct.error for one that is malformed."""

    def admitted(self, client: Client) -> None:
        """The caller has proved itself."""

    def dropped(self, client: Client) -> None:
        """The connection is closed. The client may have been waiting."""

    def overdue(self, client: Client) -> None:
        """The client's deadline has passed."""

    def differs(self, client: Client, why: str) -> None:
        """A member of the job encrypts and the server does not, or the other way; it is refused."""

    def woken(self) -> None:
        """Somebody called `Server.wake`."""


class Server:
    """Serves ``service`` on ``bind`` (numeric addresses; port 0 means any) until `close`.

    Every caller must prove that it knows ``secret`` (raw bytes) and belongs to ``job``. Raises OSError when
    it cannot listen there. `address` is the first (host, port) it listens on.

    ``listeners``: sockets that listen already, from `listen_all`; they become the server's.
    ``encrypt``: all connections are encrypted; None: each as its caller wants.
    """

    def __init__(
        self,
        service: Service,
        quota: Quota,
        bind: str | Sequence[str],
        secret: bytes,
        job: str,
        port: int = 0,
        listeners: list[socket.socket] | None = None,
        encrypt: bool | None = False,
    ) -> None:
        self._service, self._quota = service, quota
        self._encrypt = encrypt
        self._secret = secret
        self._job = handshake.job_id(job)
        self._strangers: admission.Admission[Client] = admission.Admission()
        self.clients: set[Client] = set()
        self._alarms: list[tuple[float, int, Client]] = []
        self._alarm_count = 0
        self._refusals = admission.RefusalLog()
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

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def close(self, linger: float = 0.0) -> None:
        """Stops serving and closes every connection; harmless when repeated.

        With ``linger`` it goes on until all clients have hung up, for at most that many seconds.
        """
        if self._stop_at is not None:
            return
        self._stop_at = time.monotonic() + linger
        self.wake()
        self._thread.join(linger + _STOPPING)  # a program may have closed the thread's descriptors
        del self._service  # which knows this server: no cycle is left for the collector of garbage

    def forget(self) -> None:
        """In a forked child, which has no thread that serves: closes its copies of the descriptors."""
        for client in self.clients:
            client.sock.close()
        self._close_own()

    def wake(self) -> None:
        """Any thread: has the server look whether it is to stop, and call `Service.woken`."""
        with contextlib.suppress(OSError):  # the thread may be gone already
            self._wake.send(b"x")

    # ---- for the service ----

    def reply(self, client: Client, status: int, body: bytes = b"") -> None:
        """Sends the reply that ``client`` is owed."""
        self._send(client, HEADER.pack(status, len(body)), body)

    def set_deadline(self, client: Client, when: float) -> None:
        """`Service.overdue` is called then, unless the deadline has been set anew."""
        client.deadline = when
        self._alarm(client, when)

    def drop(self, client: Client) -> None:
        """Closes the connection."""
        if client.closed:
            return
        client.closed = True
        self._quota.take(-client.reserved)
        self._strangers.discard(client)
        self.clients.discard(client)
        self._selector.unregister(client.sock)
        client.sock.close()
        self._service.dropped(client)

    # ---- the thread ----

    def _serve(self) -> None:
        try:
            while not self._stopped():
                self._turn()
        finally:
            for client in list(self.clients):
                self.drop(client)
            self._log_refusals(math.inf)
            self._close_own()

    def _close_own(self) -> None:
        for sock in (*self._listeners, self._wake, self._woken):
            sock.close()
        self._selector.close()

    def _stopped(self) -> bool:
        if self._stop_at is None:
            return False
        members = len(self.clients) - len(self._strangers)
        return members == 0 or time.monotonic() >= self._stop_at

    def _turn(self) -> None:
        self._set_accepting(time.monotonic())
        accept = False
        for key, events in self._selector.select(self._next_alarm()):
            client = key.data
            if client is None:
                if key.fileobj is self._woken:
                    self._woken.recv(16)
                    self._service.woken()
                accept = accept or key.fileobj in self._listeners
            elif not client.closed:
                self._attend(client, events)
        now = time.monotonic()
        if accept:  # after the known callers have been heard, so that a flood does not push honest ones out
            for listener in self._listeners:
                self._accept(listener, now)
        while self._alarms and self._alarms[0][0] <= now:
            _, _, client = heapq.heappop(self._alarms)
            self._ring(client, now)
        self._log_refusals(now)

    def _next_alarm(self) -> float | None:
        now = time.monotonic()
        times = [self._refusals.ends()]
        if self._alarms:
            times.append(self._alarms[0][0])
        if self._stop_at is not None:
            times.append(self._stop_at)
        if not self._accepting:
            times.append(self._accept_pause)
        return max(0.0, min(times) - now) if min(times) < math.inf else None

    def _alarm(self, client: Client, when: float) -> None:
        self._alarm_count += 1
        heapq.heappush(self._alarms, (when, self._alarm_count, client))
        if len(self._alarms) > 64 + 4 * len(self.clients):  # mostly of waits that ended early
            self._alarms = [
                alarm
                for alarm in self._alarms
                if not alarm[2].closed and (not alarm[2].trusted or alarm[0] == alarm[2].deadline)
            ]
            heapq.heapify(self._alarms)

    def _ring(self, client: Client, now: float) -> None:
        if client.closed:
            return
        if client.trusted:
            if now >= client.deadline:
                self._service.overdue(client)
        elif now >= client.born + admission.SECONDS:
            self._refuse(client, admission.LATE)

    # ---- strangers ----

    def _set_accepting(self, now: float) -> None:
        accepting = now >= self._accept_pause
        if accepting != self._accepting:
            self._accepting = accepting
            for listener in self._listeners:
                if accepting:
                    self._selector.register(listener, selectors.EVENT_READ)
                else:
                    self._selector.unregister(listener)

    def _accept(self, listener: socket.socket, now: float) -> None:
        for _ in range(16):
            room_at = self._strangers.room_at()
            if now < room_at:
                self._accept_pause = room_at
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
            self.clients.add(client)
            self._selector.register(sock, selectors.EVENT_READ, client)
            displaced = self._strangers.add(client, now)
            if displaced is not None:
                self._refuse(displaced, admission.GAVE_WAY)
            self._alarm(client, now + admission.SECONDS)

    def _refuse(self, client: Client, why: str) -> None:
        self._refusals.add(client.peer, why, time.monotonic())
        self.drop(client)

    def _log_refusals(self, now: float) -> None:
        for line in self._refusals.take(now):
            _log.warning("store: %s", line)

    def _shake_hands(self, client: Client) -> None:
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
                self._refuse_difference(client)
            client.inbox.clear()
            client.trusted = True
            self._strangers.discard(client)
            self._send(client, handshake.ACCEPTED)
            if client.encrypt:
                client.records = handshake.records(self._secret, client.hello, client.nonce, client=False)
            self._service.admitted(client)

    def _refuse_difference(self, client: Client) -> None:
        if client.rank != handshake.NOBODY:
            rank, own = f"rank {client.rank} at {client.peer}", "who serves the store of this job"
            self._service.differs(client, handshake.difference(bool(self._encrypt), rank, own))
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
            self.drop(client) if client.trusted else self._refuse(client, f"connection failed: {error}")

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
                self.drop(client)
            else:
                self._refuse(client, "it hung up before proving itself; is SLIPSTREAM_SECRET the same there?")
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
            self._shake_hands(client)
            return
        if client.owed:
            raise Bad("it sent a request while one was pending")
        if not client.reserved and len(client.inbox) == HEADER.size:
            self._begin_request(client)
        if client.reserved and len(client.inbox) == HEADER.size + client.reserved:
            op, body = client.inbox[0], memoryview(bytes(client.inbox))[HEADER.size :]
            self._quota.take(-client.reserved)
            client.reserved = 0
            client.inbox.clear()
            try:
                self._service.execute(client, op, body)
            except struct.error:
                raise Bad("a malformed request") from None

    def _begin_request(self, client: Client) -> None:
        op, length = HEADER.unpack(client.inbox)
        limit = self._service.requests.get(op)
        if limit is None:
            raise Bad(f"unknown request {op}")
        if not 0 < length <= limit:
            raise Bad(f"a request of {length} bytes")
        if not self._quota.take(length):
            raise Bad(f"the store is full ({self._quota.most >> 20} MiB)")
        client.reserved = length

    def _send(self, client: Client, *parts: bytes) -> None:
        client.put(parts)
        try:
            self._flush(client)
        except OSError:
            self.drop(client)

    def _flush(self, client: Client) -> None:
        client.flush()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.wire else 0)
        if self._selector.get_key(client.sock).events != events:
            self._selector.modify(client.sock, events, client)
