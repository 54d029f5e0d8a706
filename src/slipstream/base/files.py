"""Files of this process: how many it may have open, and short ones of the kernel's."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["kernel_text", "raise_file_limit"]


def kernel_text(path: str) -> str:
    """What a file of /proc or /sys says; raises OSError. `pathlib` would take longer to import than a rank to start."""
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def raise_file_limit() -> None:
    """Lets this process open as many files as it may: each connection is one, and each array of `slipstream.empty`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
