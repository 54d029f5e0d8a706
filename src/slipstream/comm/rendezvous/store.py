"""The job's key-value store, as its ranks see it; `StoreServer` serves it.

Ranks use it to find each other at the start: it never carries tensors.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from slipstream.base.errors import PeerLost, Refused, SlipstreamError, Timeout
from slipstream.comm.rendezvous import handshake, requests
from slipstream.comm.rendezvous.requests import Entry

if TYPE_CHECKING:
    from slipstream._core import Records

__all__ = ["LONGER", "Called", "Late", "Store", "connect_any", "named", "own_entry"]

Late: TypeAlias = Callable[[Sequence[int], float], None]

_FIRST_WORD = 10.0  # seconds until those that wait for others say so
_SILENT_TRIES = 6  # an honest server hangs up on a good caller only when it is flooded
# Ends the error of a start that took too long.
LONGER = "; `slipstream run --start-timeout SECONDS`, or SLIPSTREAM_START_TIMEOUT, waits longer"
_READ = 1 << 18  # bytes at once, of an encrypted connection
_SILENT = (
    "it is stopped, or the network cuts or drops what it sends (packets of 576 bytes at most: set the MTU of the "
    "interfaces to what the network between them carries)"
)
_ANSWER_SECONDS = 30.0  # beyond the time a request may wait in the server


class Called(NamedTuple):
    """What errors call a server (by host and port), and the cure if it has another secret, is mute, or is not there."""

    name: str = "the store at {} port {}"
    secret: str = (
        "all ranks must have the same SLIPSTREAM_SECRET (or SLIPSTREAM_SECRET_FILE) and SLIPSTREAM_JOB"
    )
    mute: str = (
        "it belongs to another job or version (compare SLIPSTREAM_JOB), or something else listens there"
    )
    absent: str = (
        f"; the process that serves it, rank 0's or the launcher, has not started or has ended{LONGER}"
    )


_STORE = Called()
_PORT_TAKEN = "give the job another port, or end that program"


class _Process:
    """What tells this process from every other one."""

    token = os.urandom(16)

    @classmethod
    def renew(cls) -> None:
        cls.token = os.urandom(16)


os.register_at_fork(after_in_child=_Process.renew)


def own_entry(
    start: str, rank: int, host: str | None = None, identity: Mapping[str, str] | None = None
) -> Entry:
    """How this process comes to a start as ``rank``; ``host`` is this one's name, for people."""
    who = f"process {os.getpid()} on host {host or socket.gethostname()}"
    return Entry(start, rank, _Process.token, who, identity or {})


class Store:
    """A connection to the store at ``host:port``; may be shared by threads.

    ``secret`` is the raw key, ``timeout`` (seconds) bounds connecting and is the default for waiting.
    ``encrypt``: the connection is encrypted, which the server must want, too. ``called``: what errors call the server.
    Connecting is retried until then, as the server may start later. Raises Timeout when nothing answers,
    Refused when the secret or the job is another. A request cut short (by an exception such as
    KeyboardInterrupt) closes the connection; the next one opens a new one.
    ``server`` is for errors: what to call rank 0, if that one serves the store.
    """

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        job: str,
        timeout: float,
        *,
        rank: int | None = None,
        encrypt: bool = False,
        called: Called = _STORE,
    ) -> None:
        self.host, self.port = host, port
        self.server = ""
        self._called = called
        self.timeout = timeout
        self._secret = secret
        self._job = job
        self._rank = handshake.NOBODY if rank is None else rank
        self._encrypt = encrypt
        self._lock = threading.Lock()
        self._entered = False
        self._sock: _Wire | None = _connect(
            lambda: [(host, port)], secret, self._hello, time.monotonic() + timeout, called=called
        )

    @property
    def _hello(self) -> handshake.Hello:
        return handshake.Hello(
            handshake.PURPOSE_STORE, handshake.job_id(self._job), rank=self._rank, encrypt=self._encrypt
        )

    @property
    def _place(self) -> str:
        return self._called.name.format(self.host, self.port)

    def set(self, key: str, value: bytes) -> None:
        """Stores up to 16 MiB under ``key``, replacing what was there."""
        name = _encode(key)
        if len(value) > requests.MAX_VALUE:
            limit = requests.MAX_VALUE
            raise ValueError(f"store: the value of {key!r} has {len(value)} bytes, more than {limit}")
        self._request(requests.SET, requests.SET_HEAD.pack(len(name)) + name + value, 0.0)

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """The value under ``key``, waiting up to ``timeout`` seconds until there is one; raises Timeout."""
        wait = self._wait(timeout)
        body = requests.GET_HEAD.pack(_milliseconds(wait)) + _encode(key)
        status, value = self._request(requests.GET, body, wait)
        if status == requests.LATE:
            raise Timeout(f"store: nobody has set {key!r} within {wait:g} s")
        return value

    def add(self, key: str, amount: int) -> int:
        """Adds to the number under ``key`` (0 at first) and returns the sum; atomic."""
        body = requests.ADD_HEAD.pack(amount) + _encode(key)
        _, value = self._request(requests.ADD, body, 0.0)
        total: int = requests.ADD_HEAD.unpack(value)[0]
        return total

    def gather(
        self,
        prefix: str,
        n: int,
        timeout: float | None = None,
        lacking: str = "",
        longer: str = LONGER,
        late: Late | None = None,
    ) -> list[bytes]:
        """The values of ``prefix/0`` ... ``prefix/(n-1)``, in order; raises Timeout naming those missing.

        ``lacking``: what the error says that they have not done; ``longer``: how to give them more time. ``late`` is
        called after 10 s, and then more and more rarely, with those still missing and the seconds since the start.
        """
        if not 0 < n <= requests.MAX_GATHER:
            raise ValueError(f"store: cannot gather {n} keys")
        limit = self._wait(timeout)
        begin, pause = time.monotonic(), _FIRST_WORD if late is not None else limit
        while True:
            left = max(0.0, begin + limit - time.monotonic())
            wait = min(pause, left)
            body = requests.GATHER_HEAD.pack(_milliseconds(wait), n) + _encode(prefix)
            status, value = self._request(requests.GATHER, body, wait)
            if status != requests.LATE:
                break
            missing = struct.unpack(f"<{len(value) // 4}I", value)
            if late is None or wait >= left:
                tail = f": {lacking}" if lacking else ""
                raise Timeout(f"{named(missing)} of {n} did not come within {limit:g} s{tail}{longer}")
            late(missing, time.monotonic() - begin)
            pause *= 3
        values, at = [], 0
        for _ in range(n):
            (length,) = requests.LENGTH.unpack_from(value, at)
            at += requests.LENGTH.size
            values.append(value[at : at + length])
            at += length
        return values

    def delete_prefix(self, prefix: str) -> int:
        """Removes every key that starts with ``prefix``; returns how many there were."""
        _, value = self._request(requests.DELETE, _encode(prefix), 0.0)
        count: int = requests.LENGTH.unpack(value)[0]
        return count

    def enter(
        self, start: str, rank: int, host: str | None = None, identity: Mapping[str, str] | None = None
    ) -> str:
        """Comes to a start as ``rank``; returns its nonce, the same for all ranks.

        ``host`` is this one's name, for people, ``identity`` what its launcher calls the start. If this connection ends
        without `leave`, those who wait for ranks of the start get PeerLost. Raises Refused if another process holds the
        rank, or the start is another one.
        """
        body = own_entry(start, rank, host, identity).pack()
        nonce = self._request(requests.ENTER, body, 0.0)[1].decode()
        self._entered = True
        return nonce

    def leave(self, why: str = "") -> None:
        """Leaves the start, with all that was to be had or because of ``why``, and closes the connection."""
        if self._entered and self._sock is not None:
            self._entered = False
            with contextlib.suppress(SlipstreamError):
                self._request(requests.LEAVE, b"\0" + why.encode()[:2000], 0.0, slack=2.0)
        self.close()

    def ask(self, question: bytes, timeout: float, most: int = requests.MAX_QUESTION) -> bytes:
        """What a server that answers questions of up to ``most`` bytes says; Timeout after ``timeout`` seconds."""
        if not 0 < len(question) <= most:
            raise ValueError(f"store: a question has 1 to {most} bytes, got {len(question)}")
        return self._request(requests.ASK, question, timeout, slack=0.0)[1]

    def request(self, op: int, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and reply of a server that has requests of its own; raises Timeout after ``timeout`` seconds."""
        return self._request(op, body, timeout, slack=0.0)

    def forget(self) -> None:
        """In a forked child: closes its copy of the connection, whatever the parent does with it."""
        if self._sock is not None:
            self._sock.close()

    def close(self) -> None:
        """Closes the connection; a later request opens a new one."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _wait(self, timeout: float | None) -> float:
        return max(0.0, self.timeout if timeout is None else timeout)

    def _request(
        self, op: int, body: bytes, wait: float, *, slack: float = _ANSWER_SECONDS
    ) -> tuple[int, bytes]:
        with self._lock:
            if self._sock is None:
                self._sock = _connect(
                    lambda: [(self.host, self.port)],
                    self._secret,
                    self._hello,
                    time.monotonic() + self.timeout,
                    called=self._called,
                )
            sock, whole = self._sock, False
            try:
                sock.settimeout(wait + slack)
                sock.sendall(requests.HEADER.pack(op, len(body)) + body)
                status, length = requests.HEADER.unpack(sock.receive(requests.HEADER.size))
                # values and gathered replies with their lengths; more would be a broken server
                if length > requests.MAX_REPLY + 4 * requests.MAX_GATHER:
                    raise SlipstreamError(f"{self._place}: a reply of {length} bytes")
                answer = sock.receive(length)
                whole = True
            except TimeoutError:
                raise Timeout(f"{self._place} does not answer: {_SILENT}") from None
            except OSError as error:
                text = f"lost the connection to {self._place}: {error}"
                if not self.server:
                    raise PeerLost(text, host=self.host) from None
                raise PeerLost(
                    f"{self.server}, which serves the store, is gone: {text}", 0, self.host
                ) from None
            finally:
                if not whole:
                    self._disconnect()
        if status == requests.LOST:
            (rank,) = requests.LOST_HEAD.unpack_from(answer)
            raise PeerLost(answer[requests.LOST_HEAD.size :].decode(errors="replace"), rank=rank)
        if status == requests.REFUSED:
            raise Refused(answer.decode(errors="replace"))
        if status == requests.ERROR:
            raise SlipstreamError(f"{self._place}: {answer.decode(errors='replace')}")
        return status, answer


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1, ...`` with no more than 16 numbers."""
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}"


def connect_any(
    addresses: Callable[[], Sequence[tuple[str, int]]],
    secret: bytes,
    job: str,
    timeout: float,
    rank: int,
    otherwise: str,
    *,
    encrypt: bool = False,
    called: Called = _STORE,
) -> Store:
    """Connects to the first of the addresses that answers.

    ``addresses`` is asked again before every round, as they may be published (or replaced) only later; the
    Timeout says ``otherwise`` when it never gave one. Raises as `Store` does.
    """
    store = Store.__new__(Store)
    store.timeout, store._secret, store._job, store._rank = timeout, secret, job, rank
    store._encrypt, store._called = encrypt, called
    store._lock = threading.Lock()
    store._entered = False
    store.server = ""
    store._sock = wire = _connect(
        addresses, secret, store._hello, time.monotonic() + timeout, otherwise, called
    )
    store.host, store.port = wire.sock.getpeername()[:2]
    return store


def _connect(
    addresses: Callable[[], Sequence[tuple[str, int]]],
    secret: bytes,
    hello: handshake.Hello,
    deadline: float,
    otherwise: str = "no address is known",
    called: Called = _STORE,
) -> _Wire:
    pause, silent, last = 0.02, 0, otherwise
    while True:
        strangers, others = "", 0
        for host, port in addresses():
            tried = called.name.format(host, port)
            try:
                return _dial(host, port, secret, hello, deadline)
            except handshake.OtherVersion as error:
                raise Refused(f"{tried}: {error}") from None
            except handshake.NoServer as error:  # perhaps the server has another address
                strangers = last = f"{tried} is not there: {error}; {_PORT_TAKEN}"
                continue
            except handshake.Differs as error:
                raise Refused(f"{tried} refused this process: {error}") from None
            except Refused as error:
                raise Refused(f"{tried} refused this process: {error}; {called.secret}") from None
            except ConnectionResetError as error:
                last, silent = f"cannot reach {tried}: {error}", silent + 1
                if silent >= _SILENT_TRIES:
                    raise Refused(
                        f"{tried} closes the connection during the handshake: {called.mute}"
                    ) from None
            except OSError as error:
                last = f"cannot reach {tried}: {error}"
            others += 1
        if strangers and not others:
            raise Refused(strangers)
        left = deadline - time.monotonic()
        if left <= 0:
            raise Timeout(f"{last}{called.absent}") from None
        time.sleep(min(pause, left))
        pause = min(pause * 1.6, 0.5)


def _dial(host: str, port: int, secret: bytes, hello: handshake.Hello, deadline: float) -> _Wire:
    left = max(0.05, deadline - time.monotonic())
    sock = socket.create_connection((host, port), timeout=min(left, 10.0))
    try:
        if sock.getsockname() == sock.getpeername():  # TCP can connect an ephemeral port to itself
            raise ConnectionRefusedError("nobody listens there")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(min(left, 15.0))
        return _Wire(sock, handshake.call(sock, secret, hello))
    except BaseException:
        sock.close()
        raise


class _Wire:
    """An authenticated connection, encrypted if it has records."""

    def __init__(self, sock: socket.socket, records: Records | None) -> None:
        self.sock = sock
        self.settimeout, self.close = sock.settimeout, sock.close
        self._records = records
        self._text = bytearray()  # opened, and not received yet

    def sendall(self, data: bytes) -> None:
        self.sock.sendall(data if self._records is None else self._records.seal(data))

    def receive(self, count: int) -> bytes:
        """Exactly so many bytes."""
        if self._records is None:
            data = bytearray(count)
            view, at = memoryview(data), 0
            while at < count:
                at += self._some(self.sock.recv_into(view[at:]))
            return bytes(data)
        while len(self._text) < count:
            sealed = self.sock.recv(_READ)
            self._some(len(sealed))
            try:
                self._text += self._records.open(sealed)
            except ValueError as error:
                raise ConnectionResetError(str(error)) from None
        text = bytes(self._text[:count])
        del self._text[:count]
        return text

    @staticmethod
    def _some(count: int) -> int:
        if count == 0:
            raise ConnectionResetError("closed by the other side")
        return count


def _encode(key: str) -> bytes:
    name = key.encode()
    if not 0 < len(name) <= requests.MAX_KEY:
        raise ValueError(f"store: a key has 1 to {requests.MAX_KEY} bytes, got {len(name)}")
    return name


def _milliseconds(seconds: float) -> int:
    return min(math.ceil(seconds * 1000), 0xFFFFFFFF)
