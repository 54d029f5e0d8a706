"""Ends what a job has left on a host where both its agent and its guard were killed, or do not answer.

``python -m slipstream.launch.sweep`` reads the job's secret (hexadecimal digits) from standard input: all processes
of the job have it in their environment, and agents and guards what `mark_of` makes of it among their arguments. The
name of the ranks' control group, if they have one, comes of that, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import sys
import time

from slipstream.launch import control_group

__all__ = ["mark_of", "sweep"]

_LIMIT = 5.0  # seconds


def mark_of(secret: bytes) -> str:
    """An argument by which a job's agents are known; it tells nothing of the secret."""
    return "--job=" + hashlib.sha256(b"slipstream agents of a job" + secret).hexdigest()[:32]


def sweep(secret: str) -> bool:
    """Kills every process of this user with that secret, until there is none; False if some stay."""
    marks = {
        "environ": f"SLIPSTREAM_SECRET={secret}".encode(),
        "cmdline": mark_of(bytes.fromhex(secret)).encode(),
    }
    deadline = time.monotonic() + _LIMIT
    while True:
        left = [int(name) for name in os.listdir("/proc") if name.isdigit() and _bears(name, marks)]
        left = [pid for pid in left if pid != os.getpid()]
        groups = [
            group
            for group in control_group.find(mark_of(bytes.fromhex(secret)))
            if not control_group.end(group)
        ]
        if not (left or groups) or time.monotonic() > deadline:
            return not (left or groups)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _bears(pid: str, marks: dict[str, bytes]) -> bool:
    for name, mark in marks.items():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            if mark in file.read().split(b"\0"):
                return True
    return False  # or another user's, or gone meanwhile


if __name__ == "__main__":
    text = sys.stdin.readline().strip()
    if not re.fullmatch(r"([0-9a-f]{2}){16,}", text):
        sys.exit("sweep: expected a job's secret on standard input")
    sys.exit(0 if sweep(text) else 1)
