"""The plain HTTP port of a reducer: is it alive, does it take jobs, what does it do.

/healthz   200 while the process answers
/readyz    200 if a further job would be taken, else 503 with the reason
/metrics   Prometheus' text format, version 0.0.4
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slipstream.observe.metrics_http import PROMETHEUS, Page, PageServer
from slipstream.observe.metrics_text import Family
from slipstream.observe.metrics_text import render as rendered
from slipstream.reducer.server import Reducer

__all__ = ["render", "serve_metrics"]


def render(status: dict[str, Any]) -> str:
    """The `Reducer.status` in Prometheus' text format. No job is named."""
    jobs = status["jobs"]
    rows = (
        ("jobs", "gauge", "Jobs being served.", len(jobs)),
        ("jobs_limit", "gauge", "Jobs that can be served at once.", status["jobs_limit"]),
        ("workers", "gauge", "Connected workers of all jobs.", sum(job["links"] for job in jobs)),
        ("memory_bytes", "gauge", "Memory that the jobs being served may use.", status["memory"]),
        ("memory_limit_bytes", "gauge", "Memory that all jobs may use together.", status["memory_limit"]),
        (
            "job_bandwidth_limit_bytes",
            "gauge",
            "Bytes a second that the workers of one job may send; 0: no limit.",
            status["bandwidth_limit"],
        ),
        ("draining", "gauge", "1 if no more jobs are taken.", int(status["draining"])),
        ("registered_total", "counter", "Jobs that began.", status["registered"]),
        ("refused_total", "counter", "Jobs that were refused.", status["refused"]),
        ("works_total", "counter", "Operations begun.", status["works"]),
        ("received_bytes_total", "counter", "Bytes of operations begun, from all workers.", status["bytes"]),
        ("sent_bytes_total", "counter", "Bytes of operations begun, to all workers.", status["bytes"]),
    )
    return rendered(
        Family(f"slipstream_reducer_{name}", kind, text, [({}, value)]) for name, kind, text, value in rows
    )


@contextmanager
def serve_metrics(reducer: Reducer, bind: str, port: int) -> Iterator[tuple[str, int]]:
    """Serves the three pages at ``bind``:``port`` (0: any) inside the block; gives the (host, port)."""

    def ready() -> tuple[int, str]:
        busy = reducer.busy()
        return 503 if busy else 200, f"{busy or 'ready'}\n"

    pages = {
        "/healthz": Page(lambda: (200, "alive\n")),
        "/readyz": Page(ready),
        "/metrics": Page(lambda: (200, render(reducer.status())), PROMETHEUS, costly=True),
    }
    server = PageServer(pages, bind, port)
    try:
        yield server.address
    finally:
        server.close()
