"""The Prometheus port of a rank: SLIPSTREAM_METRICS_PORT + its number on the host, at SLIPSTREAM_METRICS_BIND.

    /metrics   Prometheus' text format, version 0.0.4
    /healthz   200 while the rank is well, 503 once a job of it has failed

If the program has imported prometheus_client, /metrics has what its default registry collects, too. A port that is
taken does not end a training: the rank says by whom, and goes on without.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

from slipstream.base.log import Log
from slipstream.base.settings import Settings
from slipstream.observe.metrics import recorders
from slipstream.observe.metrics_http import PROMETHEUS, Page, PageServer
from slipstream.observe.metrics_text import of_ranks, render

__all__ = ["close", "holder_of", "serve"]

_log = Log("slipstream")
_server: PageServer | None = None  # of this process, for all of its jobs
_refused = False


def serve(settings: Settings, local_rank: int) -> None:
    """Serves the pages from now on, unless this process does already. Warns if it cannot."""
    global _server, _refused
    if _server is not None or _refused or settings.metrics_port is None:
        return
    port = settings.metrics_port + local_rank
    pages = {"/metrics": Page(_metrics, PROMETHEUS, costly=True), "/healthz": Page(_health)}
    try:
        _server = PageServer(pages, settings.metrics_bind, port)
    except (OSError, OverflowError) as error:
        _refused = True
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        by = holder_of(port) if taken else ""
        _log.warning(
            "no metrics of this rank: %s%s; another --metrics-port (SLIPSTREAM_METRICS_PORT) is needed",
            f"port {port} is above 65535" if port > 65535 else getattr(error, "strerror", None) or error,
            f" (by {by})" if by else "",
        )


def close() -> None:
    """Ends the port once this process is in no job any more."""
    global _server
    if _server is not None and not recorders():
        _server.close()
        _server = None


def _metrics() -> tuple[int, str]:
    text = render(of_ranks([one.snapshot() for one in recorders()]))
    client = sys.modules.get("prometheus_client")
    if client is not None:
        text += client.generate_latest().decode()
    return 200, text


def _health() -> tuple[int, str]:
    failed = any(one.state().startswith("failed") for one in recorders())
    return (503, "failed\n") if failed else (200, "well\n")


def holder_of(port: int) -> str:
    """Which process listens at a TCP port of this machine, as far as this user may know; "" if that is not known."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for fds in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(fd) in inodes for fd in fds.iterdir()):
                command = (fds.parent / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                shown = re.sub(r"[^\x20-\x7e]", "?", command).strip()[:100]
                return f"process {fds.parent.name}: {shown}"
        except OSError:
            continue
    return ""


def _forget_after_fork() -> None:
    global _server
    _server = None


os.register_at_fork(after_in_child=_forget_after_fork)
