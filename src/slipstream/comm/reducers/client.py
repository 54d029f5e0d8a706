"""A job's reducers, as its workers see them: found, given a session with the job, watched, taken back when lost.

A reducer answers at a port (`slipstream.reducer`). Rank 0 asks there for a session for the job and tells the
other ranks; every rank then has a session of its own with that reducer, which the native core splits
all-reduces over. A reducer that is lost is asked again every second; when it is back, all use it again.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from slipstream import _core
from slipstream.base.errors import Refused, SlipstreamError
from slipstream.base.log import Log
from slipstream.comm.rendezvous.secret import reducer_secret
from slipstream.comm.rendezvous.store import Called, Store
from slipstream.plan.shards import Shards, shards_of

__all__ = ["JOB", "Keeper", "Reply", "Request", "reducer_secret", "register", "resolve"]

JOB = "slipstream reducer"  # what callers of a reducer prove to belong to
_REGISTER_SECONDS = 5.0
_AGAIN_SECONDS = 1.0
_RETRY_SECONDS = 2.0  # that another try may take: the end of the job waits for it
_MOST_ON_A_HOST = 1024  # ranks

_CALLED = Called(
    name="reducer {}:{}",
    secret="the job needs the secret that the reducer was started with: SLIPSTREAM_REDUCER_SECRET, or its file",
    mute="something else listens there, or the reducer is busy",
    absent=": `slipstream reducer` has to run there, and the network to let connections to its port through",
)

_log = Log("slipstream.reducers")


@dataclass(frozen=True)
class Request:
    """What a job asks a reducer for: a session with ``workers`` ranks, of ``lanes`` connections each.

    ``hosts``: the number of each rank's host, if ranks share some; else nothing.
    """

    job: str
    workers: int
    lanes: int
    hosts: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(self.__dict__).encode()

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Raises ValueError for anything but what `encode` makes within sane bounds."""
        fields = _fields(data, "job", "workers", "lanes", "hosts")
        job, workers, lanes, hosts = (fields[name] for name in ("job", "workers", "lanes", "hosts"))
        if not (isinstance(job, str) and job.isprintable() and 0 < len(job) <= 1000):
            raise ValueError("not a name of a job")
        if not (type(workers) is int and type(lanes) is int):
            raise ValueError("not a request for a session")
        if not (2 <= workers <= 1 << 16 and 1 <= lanes <= 64):
            raise ValueError(f"{workers} workers with {lanes} lanes")
        numbers = isinstance(hosts, list) and all(type(host) is int and 0 <= host < workers for host in hosts)
        if (
            not numbers
            or len(hosts) not in (0, workers)
            or max(Counter(hosts).values(), default=1) > _MOST_ON_A_HOST
        ):
            raise ValueError(f"not the hosts of {workers} workers")
        return cls(job, workers, lanes, tuple(hosts))

    @property
    def shards(self) -> Shards:
        """What each worker carries between the hosts."""
        return shards_of(self.workers, self.hosts or range(self.workers))


@dataclass(frozen=True)
class Reply:
    """A reducer's answer: the incarnation (port << 48 | random bits) of its session, or why there is none."""

    incarnation: int = 0
    refusal: str = ""

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(self.__dict__).encode()

    @classmethod
    def decode(cls, data: bytes) -> Reply:
        """Raises ValueError for anything but what `encode` makes."""
        fields = _fields(data, "incarnation", "refusal")
        incarnation, refusal = fields["incarnation"], fields["refusal"]
        if type(incarnation) is not int or not 0 <= incarnation < 1 << 64 or not isinstance(refusal, str):
            raise ValueError("not a reducer's answer")
        return cls(incarnation, refusal)


def _fields(data: bytes, *names: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except RecursionError:
        fields = None
    if not isinstance(fields, dict) or set(fields) != set(names):
        raise ValueError("expected an object of " + ", ".join(names))
    return fields


def register(
    host: str,
    port: int,
    secret: bytes,
    request: Request,
    timeout: float = _REGISTER_SECONDS,
    *,
    encrypt: bool = False,
) -> int:
    """Asks the reducer for a session, encrypted or not; returns its incarnation.

    Raises SlipstreamError saying why there is none.
    """
    try:
        store = Store(host, port, secret, JOB, timeout, encrypt=encrypt, called=_CALLED)
        try:
            reply = Reply.decode(store.ask(request.encode(), timeout))
        finally:
            store.close()
    except SlipstreamError:
        raise
    except (ValueError, OSError) as error:
        raise SlipstreamError(f"reducer {host}:{port}: {error}") from None
    if not reply.incarnation:
        raise SlipstreamError(f"reducer {host}:{port} refuses a session: {reply.refusal}")
    return reply.incarnation


def resolve(host: str) -> list[str]:
    """The numeric addresses of a host name; raises SlipstreamError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SlipstreamError(f"reducer {host}: {error.strerror}") from None
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class Keeper:
    """Rank 0's side: registers the job with its reducers at the start, and again with those that were lost."""

    def __init__(
        self, reducers: Sequence[tuple[str, int]], secret: bytes, request: Request, *, encrypt: bool = False
    ) -> None:
        self._encrypt = encrypt
        self.reducers = tuple(reducers)
        self._secret = secret
        self._request = request
        self._refused: dict[
            tuple[str, int], str
        ] = {}  # what people have been told last of a reducer that refuses us
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def register_all(self) -> list[dict[str, Any]]:
        """Name, addresses and incarnation (0: it is not there) of every reducer, at once."""
        with ThreadPoolExecutor(max_workers=len(self.reducers)) as pool:
            return list(pool.map(self._first, self.reducers))

    def _first(self, reducer: tuple[str, int]) -> dict[str, Any]:
        host, port = reducer
        found: dict[str, Any] = {"name": f"{host}:{port}", "addresses": [], "incarnation": 0}
        try:
            found["addresses"] = resolve(host)
            found["incarnation"] = register(host, port, self._secret, self._request, encrypt=self._encrypt)
        except SlipstreamError as error:
            if isinstance(error, Refused):
                self._refused[reducer] = str(error)
            _log.warning("%s; the job starts without it", error)
        return found

    def watch(self, client: _core.ReducerClient) -> None:
        """Registers again with reducers that are lost, until `stop`."""
        self._thread = threading.Thread(
            target=self._watch, args=(client,), name="slipstream-reducers", daemon=True
        )
        self._thread.start()

    def _watch(self, client: _core.ReducerClient) -> None:
        asked: dict[int, int] = {}  # rounds since a reducer was given a new incarnation
        while not self._stop.wait(_AGAIN_SECONDS):
            for index, state in enumerate(client.states()):
                if state["used"]:
                    asked.pop(index, None)
                    continue
                asked[index] = asked.get(index, 10) + 1
                if asked[index] <= 10:  # the others are still to connect
                    continue
                if self._stop.is_set():
                    return
                host, port = self.reducers[index]
                try:
                    incarnation = register(
                        host, port, self._secret, self._request, _RETRY_SECONDS, encrypt=self._encrypt
                    )
                except Refused as error:  # it has another secret, say, or only hangs up
                    if self._refused.get((host, port)) != str(error):
                        self._refused[host, port] = str(error)
                        _log.warning("%s; the job goes on without it", error)
                    continue
                except (SlipstreamError, OSError):
                    continue
                self._refused.pop((host, port), None)
                client.registered(index, incarnation)
                asked[index] = 0

    def stop(self) -> None:
        """Ends the watch."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
