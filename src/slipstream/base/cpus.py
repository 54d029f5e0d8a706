"""Lists of CPUs as Linux writes them: ``0-3,8``."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["format_cpus", "parse_cpus"]

_MOST = 8192  # CPUs that Linux can have


def parse_cpus(text: str) -> tuple[int, ...]:
    """The CPUs of ``0-3,8``, in ascending order; ValueError for anything else, and for a list that names one twice."""
    cpus: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part, re.ASCII)
        if match is None:
            raise ValueError("expected CPU numbers and ranges with commas between, such as 0-3,8")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < _MOST:
            raise ValueError(f"{part} is no range of CPUs below {_MOST}")
        cpus.extend(range(first, last + 1))
    if len(set(cpus)) < len(cpus):
        raise ValueError("a CPU is named twice")
    return tuple(sorted(cpus))


def format_cpus(cpus: Iterable[int]) -> str:
    """``0-3,8`` of 0, 1, 2, 3 and 8; read back by `parse_cpus`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
