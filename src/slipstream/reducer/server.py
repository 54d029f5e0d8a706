"""The control side of a reducer: gives jobs sessions, keeps to limits, frees what is left. The data never comes here.

A job asks at an authenticated port (`comm/reducers/client.py`); each gets a native session of its own: own port,
own secret, own engine thread, own memory, and a thread here that looks twice a second whether it is over. So jobs
cannot see, slow down or break one another but through the machine's processor and network. A host whose job breaks
the rules, or leaves without one finished work, waits until its next one is taken: longer each time (`penalties`). So
does one whose job's workers do not come while a job of another host finds no room (`admission`).
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream import _core
from slipstream.base.errors import SlipstreamError
from slipstream.comm.measuring.runs import compiled
from slipstream.comm.reducers.client import JOB, Reply, Request
from slipstream.comm.rendezvous.questions import QuestionServer
from slipstream.plan.reducers import reducer as reducer_plan
from slipstream.reducer.admission import Bounds, Decision, admit
from slipstream.reducer.penalties import Penalties

__all__ = ["Limits", "Reducer"]

_LOOK_SECONDS = 0.5
_WORK_WINDOWS = (
    5.5  # of a work: its sums, in f32 too if they are short (four times as much), and one chunk in f32
)
_LEAST_WINDOW = 1 << 20
_SMALL_WINDOWS = 3  # for all works that are too small for a window
_WORKER = (
    80 << 20
)  # data of one worker before its turn: 64 MiB in the transport, 8 MiB of spare blocks, small frames
_REFUSALS_LOGGED = 20  # at once, and one more a second: who asks without end must not fill the log

_log = logging.getLogger("slipstream.reducer")


@dataclass(frozen=True)
class Limits:
    """What a reducer gives. ``memory``: bytes for all jobs; ``jobs``: how many at once; ``bandwidth``: bytes a second
    that the workers of one job may send together, 0: no limit; ``heartbeat``: seconds of silence after which a worker
    counts as lost; ``idle``: seconds a session goes on without all its workers; ``join``: seconds that a job's workers
    have to come before a job that finds no room gets its place.
    """

    memory: int = 4 << 30
    jobs: int = 16
    bandwidth: float = 0.0
    window: int = 8 << 20
    heartbeat: float = 2.0
    idle: float = 30.0
    join: float = 10.0

    def shard_window(self, shards: int) -> int:
        """Bytes of the window of a work of one of so many shards."""
        return max(self.window // shards, min(self.window, _LEAST_WINDOW))

    def needed(self, workers: int, shards: int = 1) -> int:
        """Bytes that a job may use."""
        # Two works of each shard may be under way at once, and small ones; and of each worker its data before its turn.
        large = 2 * _WORK_WINDOWS * shards * self.shard_window(shards)
        return int(large + _SMALL_WINDOWS * self.window) + workers * _WORKER


@dataclass(eq=False)
class _Job:
    name: str
    workers: int
    server: _core.ReducerServer
    memory: int
    host: str  # that asked
    served: dict[str, Any] = field(
        default_factory=lambda: {
            "works": 0,
            "finished": 0,
            "bytes": 0,
            "links": 0,
            "failure": "",
            "own": False,
            "breach": False,
        }
    )
    begun: float = field(default_factory=time.monotonic)
    closing: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)  # of `closing`, and to look at the session
    met: bool = False  # a worker has come
    complete: float = field(default_factory=time.monotonic)  # when last all were there
    joined: bool = False  # all workers have been there at once
    missed: bool = False  # a job of another host found no room before they were
    given: bool = False  # its place is another job's


class Reducer:
    """Serves at ``bind``:``port`` (0: any) those who know ``secret`` (raw bytes) until `close`.

    ``bind``: numeric addresses. `address` is the first (host, port) it listens on. ``congestion`` and ``dscp``: as
    SLIPSTREAM_CONGESTION and SLIPSTREAM_DSCP. A job's connections are encrypted if it wants that; with ``encrypt``
    others are refused.
    Raises OSError when it cannot listen there or use that.
    """

    def __init__(
        self,
        bind: str | Sequence[str],
        port: int,
        secret: bytes,
        limits: Limits | None = None,
        *,
        congestion: str = "",
        dscp: int = 0,
        encrypt: bool = False,
    ) -> None:
        if congestion:
            _check_congestion(congestion)
        self.limits = limits or Limits()
        self.draining = False
        self._bind = [bind] if isinstance(bind, str) else list(bind)
        self._secret = secret
        self._congestion, self._dscp = congestion, dscp
        self._lock = threading.Lock()
        self._jobs: dict[_Job, threading.Thread] = {}
        self._totals: Counter[str] = Counter()  # of jobs that are over: works, bytes; registered, refused
        self._penalties = Penalties()
        self._log_credit, self._log_time = float(_REFUSALS_LOGGED), time.monotonic()
        self._stop = threading.Event()
        self._server = QuestionServer(
            bind, secret, JOB, port, self._answer, encrypt=True if encrypt else None
        )
        self.address = self._server.address

    def close(self) -> None:
        """Ends all sessions at once; harmless when repeated."""
        self.draining = True
        self._server.close()  # from here on nobody begins
        self._stop.set()
        with self._lock:
            threads = list(self._jobs.values())
        for thread in threads:
            thread.join()

    def drain(self, seconds: float) -> None:
        """Takes no more jobs, waits until those there are have gone, for at most ``seconds``, and closes."""
        self.draining = True
        deadline = time.monotonic() + seconds
        while self._jobs and time.monotonic() < deadline and not self._stop.wait(0.05):
            pass
        self.close()

    def busy(self) -> str:
        """Why no further job would be taken now; "" if one would."""
        with self._lock:
            return self._decide("", 2).refusal

    def status(self) -> dict[str, Any]:
        """Jobs, memory in bytes, and what was served: ``works``, ``bytes`` that came in (and, summed, went out)."""
        with self._lock:
            jobs = [
                {"job": job.name, "workers": job.workers, "memory": job.memory, **job.served}
                for job in self._jobs
            ]
            totals = Counter(self._totals)
        return {
            "draining": self.draining,
            "jobs": jobs,
            "jobs_limit": self.limits.jobs,
            "memory": sum(job["memory"] for job in jobs),
            "memory_limit": self.limits.memory,
            "bandwidth_limit": self.limits.bandwidth,
            "works": totals["works"] + sum(job["works"] for job in jobs),
            "bytes": totals["bytes"] + sum(job["bytes"] for job in jobs),
            "registered": totals["registered"],
            "refused": totals["refused"],
        }

    # ---- the server's thread

    def _answer(self, question: bytes, peer: str, encrypted: bool) -> bytes:
        try:
            reply = self._begin(Request.decode(question), peer, encrypted)
        except (ValueError, SlipstreamError) as error:
            reply = Reply(refusal=str(error))
        except Exception:  # whatever a job asks for, the service goes on
            _log.exception("a job of %s could not begin", peer)
            reply = Reply(refusal="it failed; its log says why")
        if reply.refusal:
            self._refused(peer, reply.refusal)
        return reply.encode()

    def _refused(self, peer: str, why: str) -> None:
        with self._lock:
            self._totals["refused"] += 1
        now = time.monotonic()
        self._log_credit = min(float(_REFUSALS_LOGGED), self._log_credit + now - self._log_time)
        self._log_time = now
        if self._log_credit >= 1:
            self._log_credit -= 1
            _log.warning("refused a job of %s: %s", peer, why)

    def _decide(self, host: str, workers: int, shards: int = 1) -> Decision[_Job]:
        """Whether a job of so many workers and shards can begin. With the lock."""
        if self.draining:
            return Decision("it is shutting down")
        limits = self.limits
        bounds = Bounds(limits.jobs, limits.memory, limits.join)
        held = [job for job in self._jobs if not job.given]
        return admit(held, host, workers, limits.needed(workers, shards), bounds, time.monotonic())

    def _begin(self, request: Request, peer: str, encrypted: bool) -> Reply:
        host, shards = peer.rpartition(":")[0], request.shards
        with self._lock:
            others = [job for job in self._jobs if job.host == host]
        for job in others:  # a fault counts before the next job is taken
            self._look(job)
        with self._lock:
            left, why = self._penalties.left(host, time.monotonic())
            if left > 0:
                return Reply(
                    refusal=f"{host} has to wait {left:.1f} s for its next job, as one broke the rules: {why}"
                )
            decision = self._decide(host, request.workers, shards.count)
            for job in decision.going:
                job.given = True
                job.missed |= job.host != host
            for job in decision.missing:
                job.missed = True
        if decision.refusal:
            return Reply(refusal=decision.refusal)
        plan, small = (compiled(reducer_plan(workers)) for workers in (len(shards.hosts), request.workers))
        random = secrets.randbits(48)
        name, secret = _core.reducer_session(request.job, self._secret, random)
        limits = self.limits
        link = _core.LinkOptions()
        link.lanes, link.encrypt = request.lanes, encrypted
        link.congestion, link.dscp = self._congestion, self._dscp
        server = _core.ReducerServer(
            request.workers,
            [shards.carriers(shard) for shard in range(shards.count)],
            name,
            secret,
            plan,
            small,
            heartbeat=limits.heartbeat,
            link=link,
            window_bytes=limits.shard_window(shards.count),
            intake=limits.bandwidth,
        )
        try:
            port = server.listen_tcp(self._bind)
            server.start()
            needed = limits.needed(request.workers, shards.count)
            job = _Job(f"{request.job} of {peer}", request.workers, server, needed, host)
            thread = threading.Thread(
                target=self._watch, args=(job,), name=f"slipstream-job-{port}", daemon=True
            )
            thread.start()
        except BaseException:
            server.close()
            raise
        with self._lock:
            self._jobs[job] = thread
            self._totals["registered"] += 1
        _log.info("job %s: begins with %d workers, at most %d MiB", job.name, job.workers, job.memory >> 20)
        return Reply(port << 48 | random)

    # ---- a job's thread

    def _watch(self, job: _Job) -> None:
        why = ""
        try:
            while not why:
                stop = self._stop.wait(_LOOK_SECONDS)
                why = self._look(job) or ("the reducer ends" if stop else "")
        except Exception as error:  # it ends this job alone
            _log.exception("job %s", job.name)
            why = str(error)
        finally:
            with job.lock:
                job.closing = True
            try:
                job.server.close()
            finally:
                with self._lock:
                    del self._jobs[job]
                    self._totals.update({key: job.served[key] for key in ("works", "bytes")})
        _log.info("job %s: ended after %d works: %s", job.name, job.served["works"], why)

    def _look(self, job: _Job) -> str:
        """Why the job is over; "" while it is not. If that is its workers' fault, its host has to wait."""
        with job.lock:
            if job.closing:
                return ""
            job.served = job.server.served()
            why, fault = _over(job, self.limits.idle)
        if fault:
            with self._lock:
                seconds = self._penalties.fault(job.host, fault, job.begun, time.monotonic())
            if seconds > 0:
                _log.warning("%s has to wait %g s for its next job: %s", job.host, seconds, fault)
        return why


def _over(job: _Job, idle: float) -> tuple[str, str]:
    """Why the job is over, "" while it is not; and by which fault of its workers, "" if by none."""
    found, now = job.served, time.monotonic()
    job.joined |= found["links"] == job.workers or found["works"] > 0
    fruitless = ""
    if found["works"] and not found["finished"]:
        fruitless = "its workers left without one finished work"
    elif job.missed and not job.joined:
        fruitless = "its workers did not come, and a job of another host found no room"
    if job.given:
        return "its workers had not come when another job needed its place", fruitless
    if found["failure"]:
        fault = "" if found["own"] else found["failure"] if found["breach"] else fruitless
        return found["failure"], fault
    job.met |= found["links"] > 0 or found["works"] > 0
    if job.met and not found["links"]:
        return "its workers have left", fruitless
    if found["links"] == job.workers:
        job.complete = now
    if now - job.complete > idle:
        return (
            f"{job.workers - found['links']} of {job.workers} workers have been missing for {idle:g} s",
            fruitless,
        )
    return "", ""


def _check_congestion(name: str) -> None:
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            raise OSError(error.errno, f"SLIPSTREAM_CONGESTION={name}: {error.strerror}") from None
