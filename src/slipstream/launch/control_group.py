"""A control group of a job's ranks on one host, where this user may make one: the kernel kills all of it at once.

It is a folder below the group that the agent is in (cgroup v2), named for the job. Who may not make it (most users, in
most sessions) does without, and so does a kernel before 5.14, which has no ``cgroup.kill``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["end", "enter", "find", "make"]


def make(mark: str) -> Path | None:
    """A new group of the job of that ``mark`` (`sweep.mark_of`); None if that is impossible."""
    try:
        name = Path("/proc/self/cgroup").read_text(encoding="utf-8").split("0::", 1)[1].split("\n")[0]
        for mounted, root in _mounts():
            inside = os.path.relpath(name, root)
            if not inside.startswith(".."):
                group = mounted / inside / _name(mark, os.getpid())
                group.mkdir()
                if (group / "cgroup.kill").exists():
                    return group
                group.rmdir()
    except (OSError, IndexError):
        pass
    return None


def enter(group: Path | None) -> None:
    """Puts this process, and what it will start, into the group if that is possible."""
    if group is not None:
        with contextlib.suppress(OSError):
            (group / "cgroup.procs").write_text("0", encoding="ascii")


def end(group: Path | None) -> bool:
    """Kills all processes of the group and removes it; False if some have not gone yet."""
    if group is None:
        return True
    try:
        (group / "cgroup.kill").write_text("1", encoding="ascii")
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def find(mark: str) -> list[Path]:
    """All groups of the job of that ``mark`` on this host."""
    wanted = _name(mark, "")
    return [
        Path(folder) / name
        for mounted, _ in _mounts()
        for folder, names, _ in os.walk(mounted)
        for name in names
        if name.startswith(wanted)
    ]


def _name(mark: str, number: object) -> str:
    return f"slipstream-{mark.rpartition('=')[2]}-{number}"


def _mounts() -> Iterator[tuple[Path, str]]:
    """Where cgroup v2 is mounted, and which group is at the top there."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            fields, _, kind = line.partition(" - ")
            if kind.startswith("cgroup2 "):
                yield Path(fields.split()[4]), fields.split()[3]
