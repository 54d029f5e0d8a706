"""The control side of a reducer: gives jobs sessions, keeps to limits, frees what is left. The data never comes here.

A job asks through a small authenticated store (`slipstream.comm.reducers`); each gets a native session of its own: own
port, own secret, own engine thread, own memory. So jobs cannot see, slow down or break one another but through the
machine's processor and network.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from slipstream import _core
from slipstream.base.errors import SlipstreamError, Timeout
from slipstream.comm.reducers import JOB, Reply, Request
from slipstream.comm.store import Store, StoreServer
from slipstream.plan.reducers import reducer as reducer_plan

__all__ = ["Limits", "Reducer"]

_LOOK_SECONDS = 0.5
_BLOCKS = 64 << 20  # what the transport may hold of one worker's data before its turn

_log = logging.getLogger("slipstream.reducer")


@dataclass(frozen=True)
class Limits:
    """What a reducer gives. ``memory``: bytes for all jobs; ``jobs``: how many at once; ``heartbeat``: seconds of
    silence after which a worker counts as lost; ``idle``: seconds after which a session without workers ends.
    """

    memory: int = 4 << 30
    jobs: int = 16
    window: int = 8 << 20
    heartbeat: float = 2.0
    idle: float = 30.0


@dataclass(eq=False)
class _Job:
    request: Request
    session: _core.Session
    memory: int
    seen: float = field(default_factory=time.monotonic)  # when it last had workers


class Reducer:
    """Serves at ``bind``:``port`` (0: any) those who know ``secret`` (raw bytes) until `close`."""

    def __init__(self, bind: str, port: int, secret: bytes, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._bind = bind
        self._secret = secret
        self._jobs: dict[int, _Job] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.draining = False
        self._finished = {"works": 0, "bytes": 0}
        self._server = StoreServer(bind, secret, JOB, port)
        self.address = self._server.address
        host = "127.0.0.1" if bind in ("0.0.0.0", "") else bind
        self._store = Store(host, self.address[1], secret, JOB, 10.0)
        self._threads = [
            threading.Thread(target=target, name=f"slipstream-{target.__name__.strip('_')}", daemon=True)
            for target in (self._answer, self._look)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends all sessions at once."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for incarnation in list(self._jobs):
            self._end(incarnation)
        self._store.close()
        self._server.close()

    def drain(self, seconds: float) -> None:
        """Takes no more jobs, waits until those there are have gone, for at most ``seconds``, and closes."""
        self.draining = True
        deadline = time.monotonic() + seconds
        while self._jobs and time.monotonic() < deadline and not self._stop.wait(0.05):
            pass
        self.close()

    def status(self) -> dict[str, Any]:
        """Jobs, memory in bytes, and what was served: ``works``, ``bytes`` that came in."""
        with self._lock:
            jobs = list(self._jobs.values())
        found = [
            _core.served(job.session) | {"job": job.request.job, "workers": job.request.workers}
            for job in jobs
        ]
        return {
            "draining": self.draining,
            "jobs": found,
            "memory": sum(job.memory for job in jobs),
            "memory_limit": self.limits.memory,
            "works": self._finished["works"] + sum(one["works"] for one in found),
            "bytes": self._finished["bytes"] + sum(one["bytes"] for one in found),
        }

    def _answer(self) -> None:
        number = 1
        while not self._stop.is_set():
            try:
                data = self._store.get(f"request/{number}", 0.5)
            except Timeout:
                continue
            except SlipstreamError as error:
                _log.warning("%s", error)
                self._stop.wait(0.2)
                continue
            try:
                reply = self._begin(Request.decode(data))
            except (ValueError, SlipstreamError) as error:
                reply = Reply(refusal=str(error))
            if reply.refusal:
                _log.warning("refused a job: %s", reply.refusal)
            self._store.set(f"reply/{number}", reply.encode())
            self._store.delete_prefix(f"request/{number}")
            self._store.delete_prefix(f"reply/{max(0, number - 1000)}")
            number += 1

    def _begin(self, request: Request) -> Reply:
        # Two works may be under way at once, each with a window of sums; and of each worker its data before its turn.
        memory = 2 * self.limits.window + request.workers * _BLOCKS
        with self._lock:
            used = sum(job.memory for job in self._jobs.values())
        if self.draining:
            return Reply(refusal="it is shutting down")
        if len(self._jobs) >= self.limits.jobs:
            return Reply(refusal=f"it has {self.limits.jobs} jobs already (--jobs)")
        if used + memory > self.limits.memory:
            return Reply(
                refusal=f"{request.workers} workers may need {memory >> 20} MiB, and "
                f"{(self.limits.memory - used) >> 20} MiB are left (--memory)"
            )
        rows, deps = reducer_plan(request.workers).encode()
        plan = _core.Plan.compile(request.workers, request.workers + 1, 1, rows, deps)
        random = secrets.randbits(48)
        name, secret = _core.reducer_session(request.job, self._secret, random)
        session = _core.serve(
            request.workers, name, secret, plan, self.limits.heartbeat, request.lanes, self.limits.window
        )
        incarnation = session.listen_tcp(self._bind) << 48 | random
        session.start([("", False, "", [], 0)] * (request.workers + 1))
        with self._lock:
            self._jobs[incarnation] = _Job(request, session, memory)
        _log.info("job %s: %d workers", request.job, request.workers)
        return Reply(incarnation)

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            for incarnation, job in list(self._jobs.items()):
                found = _core.served(job.session)
                if found["links"]:
                    job.seen = time.monotonic()
                gone = found["works"] and not found["links"]
                if found["failed"] or gone or time.monotonic() - job.seen > self.limits.idle:
                    self._end(incarnation)

    def _end(self, incarnation: int) -> None:
        with self._lock:
            job = self._jobs.pop(incarnation)
        found = _core.served(job.session)
        try:
            job.session.check()
        except SlipstreamError as error:
            _log.warning("job %s: %s", job.request.job, error)
        for key in self._finished:
            self._finished[key] += found[key]
        job.session.close()
        _log.info("job %s: ended after %d works", job.request.job, found["works"])
