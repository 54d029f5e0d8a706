"""A plain HTTP port of a few pages, such as metrics: of a reducer, and of a rank.

Anybody may ask, so there should be nothing but numbers. A flood of callers stops no other one: when there are too many,
the one that came first of the address that has the most is hung up on, and only a few are given a page that is
*costly* at once. The thread sleeps while nobody calls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

__all__ = ["PROMETHEUS", "Page", "PageServer"]

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

_CALLERS = 64  # at once
_RENDERING = 4  # at once; further callers of a costly page are told to come again
_SECONDS = 5.0  # that a caller may take
_LOOK = 0.1  # seconds between looks at who is late, while there are callers
_TEXT = "text/plain; charset=utf-8"

_log = logging.getLogger("slipstream.metrics")


@dataclass(frozen=True)
class Page:
    """``make`` gives the status and the text."""

    make: Callable[[], tuple[int, str]]
    kind: str = _TEXT
    costly: bool = False


class PageServer:
    """Serves ``pages`` (by path) at ``bind``:``port`` (0: any) until `close`. Raises OSError if it cannot listen."""

    def __init__(self, pages: Mapping[str, Page], bind: str, port: int) -> None:
        self._server = _Server(pages, bind, port)
        self.address: tuple[str, int] = self._server.socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._server.serve, name="slipstream-metrics", daemon=True)
        self._thread.start()
        _serving.add(self)

    def close(self) -> None:
        """Serves no more. Harmless when repeated."""
        if self in _serving:
            _serving.discard(self)
            self._server.end()
            self._thread.join()
            self._server.server_close()

    def forget(self) -> None:
        """In a forked child: closes what it has of the parent's."""
        self._server.server_close()


_serving: set[PageServer] = set()


def _forget_after_fork() -> None:
    for server in _serving:
        server.forget()
    _serving.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 2 * _CALLERS  # a full queue costs a caller a second, until the kernel tries again

    def __init__(self, pages: Mapping[str, Page], bind: str, port: int) -> None:
        self.pages = pages
        self.rendering = threading.BoundedSemaphore(_RENDERING)
        self.address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._lock = threading.Lock()
        self._callers: dict[
            socket.socket, tuple[str, float]
        ] = {}  # host and time, who came first before others
        self._wake, self._woken = socket.socketpair()
        try:
            super().__init__((bind, port), _Answer)
        except OSError as error:
            self._wake.close()
            self._woken.close()
            raise OSError(error.errno, f"cannot listen on {bind} port {port}: {error.strerror}") from None

    def serve(self) -> None:
        """Until `end`. Unlike `serve_forever` it looks up only while there are callers."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(_LOOK if self._callers else None)}
                if self._woken in ready:
                    return
                if self in ready:
                    self._handle_request_noblock()  # type: ignore[attr-defined]
                self._hang_up_on_the_late()

    def end(self) -> None:
        """Has `serve` return."""
        self._wake.send(b"x")

    def server_close(self) -> None:
        super().server_close()
        self._wake.close()
        self._woken.close()

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

    def _hang_up_on_the_late(self) -> None:
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
        _log.debug("a request of %s failed", client_address, exc_info=True)


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS
    server_version, sys_version = "slipstream", ""

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path)
        if page is None:
            *others, last = self.server.pages
            self._reply(404, f"there are {', '.join(others)} and {last}\n")
        elif not page.costly:
            self._reply(*page.make(), page.kind)
        elif not self.server.rendering.acquire(blocking=False):
            self._reply(503, "too many ask for it at once; ask again in a second\n")
        else:
            try:
                status, text = page.make()
            finally:
                self.server.rendering.release()
            self._reply(status, text, page.kind)

    do_HEAD = do_GET

    def _reply(self, code: int, text: str, kind: str = _TEXT) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)
