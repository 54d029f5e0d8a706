"""The control groups of this process: folders whose files say how much of a resource it may use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

__all__ = ["control_groups", "text_of"]


def control_groups(controller: str, root: str | os.PathLike[str] = "/") -> Iterator[str]:
    """The folders of this process's groups that may limit ``controller`` (``cpu``, ``memory``), and those above them.

    Of version 2 and of version 1. A folder need not exist, nor have the controller's files.
    """
    for line in text_of(os.path.join(root, "proc/self/cgroup")).splitlines():
        match = re.fullmatch(r"\d+:([^:]*):(.*)", line)
        if match is None:
            continue
        controllers, path = match.groups()
        if controllers and controller not in controllers.split(","):
            continue
        group = os.path.join(root, "sys/fs/cgroup", controller if controllers else "")
        yield group
        for name in path.split("/"):
            if name:
                group = os.path.join(group, name)
                yield group


def text_of(path: str) -> str:
    """What a file of the kernel holds; empty if it cannot be read."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""
