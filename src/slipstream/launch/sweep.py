"""Ends what a job has left on a host where both its agent and its guard were killed.

``python -m slipstream.launch.sweep`` reads the job's secret (hexadecimal digits) from standard input: all processes
of the job have it in their environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time

__all__ = ["sweep"]

_LIMIT = 5.0  # seconds


def sweep(secret: str) -> bool:
    """Kills every process of this user with that secret, until there is none; False if some stay."""
    mark = f"SLIPSTREAM_SECRET={secret}".encode()
    deadline = time.monotonic() + _LIMIT
    while True:
        left = [int(name) for name in os.listdir("/proc") if name.isdigit() and _bears(name, mark)]
        left = [pid for pid in left if pid != os.getpid()]
        if not left or time.monotonic() > deadline:
            return not left
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _bears(pid: str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:  # another user's, or gone meanwhile
        return False


if __name__ == "__main__":
    text = sys.stdin.readline().strip()
    if not re.fullmatch(r"[0-9a-f]{32,}", text):
        sys.exit("sweep: expected a job's secret on standard input")
    sys.exit(0 if sweep(text) else 1)
