"""The plain HTTP port of a reducer: is it alive, does it take jobs, what does it do.

    /healthz   200 while the process answers
    /readyz    200 if a further job would be taken, else 503 with the reason
    /metrics   Prometheus' text format, version 0.0.4

Anybody may ask, so there is nothing but numbers. A flood of callers stops no other one: when there are too many, the
one that came first of the address that has the most is hung up on, and only a few are given /metrics at once.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from slipstream.reducer.server import Reducer

__all__ = ["render", "serve_metrics"]

_CALLERS = 64  # at once
_RENDERING = 4  # at once; further callers of /metrics are told to come again
_SECONDS = 5.0  # that a caller may take
_TEXT = "text/plain; charset=utf-8"
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

_log = logging.getLogger("slipstream.reducer")


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
            f"{status['bandwidth_limit']:.15g}",
        ),
        ("draining", "gauge", "1 if no more jobs are taken.", int(status["draining"])),
        ("registered_total", "counter", "Jobs that began.", status["registered"]),
        ("refused_total", "counter", "Jobs that were refused.", status["refused"]),
        ("works_total", "counter", "Operations begun.", status["works"]),
        ("received_bytes_total", "counter", "Bytes of operations begun, from all workers.", status["bytes"]),
        ("sent_bytes_total", "counter", "Bytes of operations begun, to all workers.", status["bytes"]),
    )
    return "".join(
        f"# HELP slipstream_reducer_{name} {text}\n# TYPE slipstream_reducer_{name} {kind}\n"
        f"slipstream_reducer_{name} {value}\n"
        for name, kind, text, value in rows
    )


@contextmanager
def serve_metrics(reducer: Reducer, bind: str, port: int) -> Iterator[tuple[str, int]]:
    """Serves the three pages at ``bind``:``port`` (0: any) inside the block; gives the (host, port)."""
    server = _Server(reducer, bind, port)
    thread = threading.Thread(
        target=server.serve_forever, args=(0.1,), name="slipstream-metrics", daemon=True
    )
    thread.start()
    try:
        host, bound = server.socket.getsockname()[:2]
        yield host, bound
    finally:
        server.shutdown()
        server.server_close()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 2 * _CALLERS  # a full queue costs a caller a second, until the kernel tries again

    def __init__(self, reducer: Reducer, bind: str, port: int) -> None:
        self.reducer = reducer
        self.rendering = threading.BoundedSemaphore(_RENDERING)
        self.address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._lock = threading.Lock()
        self._callers: dict[
            socket.socket, tuple[str, float]
        ] = {}  # host and time, who came first before others
        try:
            super().__init__((bind, port), _Pages)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {bind} port {port}: {error.strerror}") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._callers) >= _CALLERS:
                counts = Counter(host for host, _ in self._callers.values())
                most = max(counts.values())
                first = next(sock for sock, (host, _) in self._callers.items() if counts[host] == most)
                del self._callers[first]
                _hang_up(first)  # its thread ends then
            self._callers[request] = (client_address[0], time.monotonic())
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        limit = time.monotonic() - _SECONDS
        with self._lock:
            late = [sock for sock, (_, since) in self._callers.items() if since < limit]
            for sock in late:  # whatever they do meanwhile
                del self._callers[sock]
                _hang_up(sock)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._callers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("metrics: a request of %s failed", client_address, exc_info=True)


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Pages(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS
    server_version, sys_version = "slipstream", ""

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._reply(200, "alive\n")
        elif self.path == "/readyz":
            busy = self.server.reducer.busy()
            self._reply(503 if busy else 200, f"{busy or 'ready'}\n")
        elif self.path == "/metrics":
            self._metrics()
        else:
            self._reply(404, "there are /healthz, /readyz and /metrics\n")

    do_HEAD = do_GET

    def _metrics(self) -> None:
        if not self.server.rendering.acquire(blocking=False):
            self._reply(503, "too many ask for it at once; ask again in a second\n")
            return
        try:
            text = render(self.server.reducer.status())
        finally:
            self.server.rendering.release()
        self._reply(200, text, _PROMETHEUS)

    def _reply(self, code: int, text: str, kind: str = _TEXT) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("metrics: " + format, *args)
