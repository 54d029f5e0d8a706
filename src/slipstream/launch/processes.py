"""Linux processes: descendants, and making sure that none outlives its job."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

__all__ = [
    "adopt_orphans",
    "descendants",
    "die_with_parent",
    "how_it_ended",
    "keep_standard_streams",
    "kill_descendants",
    "reap",
]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def how_it_ended(code: int) -> str:
    """In words: an exit code, or minus the signal that ended a process."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-code} ({name})"


def keep_standard_streams() -> None:
    """Opens /dev/null in place of a standard stream that is closed: no other file shall get its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)


def adopt_orphans() -> None:
    """Makes descendants whose parent dies our children, instead of init's: they cannot slip away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(number: int, parent: int) -> None:
    """Has the kernel send this process a signal when its parent (process id ``parent``) dies."""
    _prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os.kill(os.getpid(), number)


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                parents[int(name)] = int(fields[1])
    return parents


def descendants(root: int) -> list[int]:
    """The processes below ``root``, parents before children; includes zombies."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def reap() -> tuple[list[tuple[int, int]], bool]:
    """The children that have ended, process id and status of each, and whether there are others."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended.append((pid, status))


def kill_descendants(reaped: Callable[[int, int], None], limit: float = 10.0) -> bool:
    """Kills and reaps everything below this process; False if something was left after ``limit`` seconds.

    ``reaped(pid, status)`` is called for each child. New processes that appear meanwhile are found by looking
    again until there are none, which works because orphans are adopted (`adopt_orphans`).
    """
    deadline = time.monotonic() + limit
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended, others = reap()
        for pid, status in ended:
            reaped(pid, status)
        if not others:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
