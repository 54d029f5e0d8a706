"""How much more memory this process can have before the kernel ends it or another one."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from slipstream.base.control_groups import control_groups, text_of

__all__ = ["FreeMemory", "free_memory"]


class FreeMemory(NamedTuple):
    """``nbytes`` is the most that can be had; ``where`` says what has no more, for people."""

    nbytes: int
    where: str


def free_memory(root: str | os.PathLike[str] = "/") -> FreeMemory | None:
    """The least of what the machine, the control group of this process and those above it have left; None: unknown.

    Swap counts as memory, and so do files that the kernel holds in memory and can drop.
    """
    root = os.fspath(root)
    machine = _numbers(text_of(os.path.join(root, "proc/meminfo")))
    swap = machine.get("SwapFree", 0) << 10
    found = []
    if "MemAvailable" in machine:
        found.append(FreeMemory((machine["MemAvailable"] << 10) + swap, "this machine"))
    for group in control_groups("memory", root):
        left = _left(group)
        if left is not None:
            found.append(FreeMemory(max(0, left) + swap, f"the control group {group}"))
    return min(found, default=None)


def _left(group: str) -> int | None:
    """What a group has left; None if it has no limit."""
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        texts = text_of(os.path.join(group, limit)), text_of(os.path.join(group, usage))
        if all(text.isdecimal() for text in texts):
            held = _numbers(text_of(os.path.join(group, "memory.stat")))
            files = sum(
                held.get(f"total_{name}", held.get(name, 0)) for name in ("active_file", "inactive_file")
            )
            return int(texts[0]) - int(texts[1]) + files
    return None


def _numbers(text: str) -> dict[str, int]:
    """Of lines such as ``name 17`` and ``Name:  17 kB``."""
    return {name: int(number) for name, number in re.findall(r"^(\w+):?\s+(\d+)", text, re.MULTILINE)}
