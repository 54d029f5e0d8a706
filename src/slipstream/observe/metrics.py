"""What a rank knows of itself: its steps, operations, links and waits, as one dict that travels as JSON.

The engine counts all the time (native/engine/counters.h). Here steps are added. Nobody looks at the numbers until
somebody asks: the Prometheus port, the summary, or `slipstream top`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from slipstream.base.errors import SlipstreamError
from slipstream.base.faces import faces_in_use
from slipstream.base.training import future_wait, leave_steps, observe_steps, saved_bytes
from slipstream.comm.membership.job import Job
from slipstream.observe.link_rates import LinkRates

__all__ = ["Recorder", "Snapshot", "percentile", "recorders"]

_KEPT = 4096  # steps of which times are kept, the latest
_RECENT = 20  # steps that "recent" tells of
_MOST_TEXT = 300  # characters

Snapshot = dict[str, Any]

_recorders: dict[Job, Recorder] = {}


def recorders() -> list[Recorder]:
    """Those of the jobs that this process is in."""
    return list(_recorders.values())


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values are; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Recorder:
    """Notes the steps of one job in this process, from now on until `close`."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._began = self._last = time.monotonic_ns()
        self._waited, self._busy = job.session.times()
        self._count = 0
        self._totals = [0.0, 0.0, 0.0]
        # seconds of a step, of waits in it, and of communication that nobody waited for
        self._steps: deque[tuple[float, float, float]] = deque(maxlen=_KEPT)
        self._rates = LinkRates()
        self._before = {_key(cell): cell for cell in job.session.counters()["operations"]}  # as the job began
        observe_steps(self._step)
        _recorders[job] = self

    def close(self) -> None:
        """Notes no more steps. Harmless when repeated."""
        leave_steps(self._step)
        _recorders.pop(self.job, None)

    def _step(self) -> None:
        if self._rates.is_due():
            self._rates.note(self._links())
        now = time.monotonic_ns()
        waited, busy = self.job.session.times()
        futures = future_wait()
        seconds = (now - self._last) * 1e-9
        exposed = min(seconds, (waited - self._waited) * 1e-9 + futures)
        hidden = min(seconds, max(0.0, (busy - self._busy) * 1e-9 - exposed))
        self._last, self._waited, self._busy = now, waited, busy
        self._count += 1
        if self._count == 1:  # it began before the training did
            return
        step = seconds, exposed, hidden
        self._steps.append(step)
        for i, value in enumerate(step):
            self._totals[i] += value

    def steps(self) -> dict[str, Any]:
        """How many steps there were, and what they took, in seconds; the first one is left out."""
        kept = list(self._steps)
        return {
            "count": max(0, self._count - 1),
            "total": dict(zip(("seconds", "exposed", "hidden"), self._totals, strict=True)),
            "all": _of_steps(kept),
            "recent": _of_steps(kept[-_RECENT:]),
            "since": (time.monotonic_ns() - self._last) * 1e-9,
        }

    def snapshot(self) -> Snapshot:
        """All that is known now. ``time``: seconds since this rank joined the job."""
        job = self.job
        counters = job.session.counters()
        return {
            "rank": job.rank,
            "size": job.size,
            "host": job.names[job.rank],
            "machine": job.membership.host_ids[job.rank],
            "job": job.membership.job,
            "pid": os.getpid(),
            "time": (time.monotonic_ns() - self._began) * 1e-9,
            "state": self.state(),
            "faces": faces_in_use(),
            "steps": self.steps(),
            "operations": self._operations(counters["operations"]),
            "waited": counters["waited"],
            "busy": counters["busy"],
            "late": {str(rank): seconds for rank, seconds in enumerate(counters["late"]) if seconds > 0},
            "stalls": counters["stalls"],
            "saved_bytes": saved_bytes(),
            "reducers": len(job.reducers.known),
            "links": [one | self._rates.of(one["rank"]) for one in self._links()],
        }

    def _links(self) -> list[dict[str, Any]]:
        job = self.job
        known = job.reducers.known
        return [
            *(_link(one) | {"reducer": ""} for one in job.session.link_statistics()),
            *(_link(one) | {"reducer": known[-1 - one["rank"]]["name"]} for one in job.reducers.links()),
        ]

    def _operations(self, cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """``cells`` without what the start of the job has measured."""
        found = [_difference(cell, self._before.get(_key(cell), {})) for cell in cells]
        return [cell for cell in found if cell["count"]]

    def state(self) -> str:
        """``computes``, ``communicates``, or ``failed: ...``."""
        session = self.job.session
        try:
            session.check()
        except SlipstreamError as error:
            return f"failed: {error}"[:_MOST_TEXT]
        return "computes" if session.quiet() else "communicates"


def _key(cell: dict[str, Any]) -> tuple[str, int]:
    return cell["collective"], cell["largest"]


def _difference(cell: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return cell | {
        name: cell[name] - before.get(name, 0) for name in ("count", "bytes", "bus_bytes", "seconds")
    }


def _of_steps(steps: list[tuple[float, float, float]]) -> dict[str, float]:
    return {
        "median": percentile((seconds for seconds, _, _ in steps), 0.5),
        "p90": percentile((seconds for seconds, _, _ in steps), 0.9),
        "compute": percentile((seconds - exposed for seconds, exposed, _ in steps), 0.5),
        "exposed": percentile((exposed for _, exposed, _ in steps), 0.5),
        "hidden": percentile((hidden for _, _, hidden in steps), 0.5),
    }


def _link(link: dict[str, Any]) -> dict[str, Any]:
    """What is told of a link: its lanes together."""
    bulk = [lane for lane in link["lanes"] if not lane["control"]]
    up = [lane for lane in link["lanes"] if lane["up"]]
    told = ("rank", "transport", "closed", "sent", "received", "lost", "replaced", "repeated")
    return {name: link[name] for name in told} | {
        "lanes": len(bulk),
        "lanes_up": sum(lane["up"] for lane in bulk),
        "rate": sum(lane["rate"] for lane in bulk),
        "rtt": min((lane["rtt"] for lane in up if lane["rtt"] > 0), default=0.0),
        "retransmits": sum(lane["retransmits"] for lane in link["lanes"]),
    }


os.register_at_fork(after_in_child=_recorders.clear)  # a child is no rank
