"""The limit of files that this process may have open."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["raise_file_limit"]


def raise_file_limit() -> None:
    """Lets this process open as many files as it may: each connection is one, and each array of `slipstream.empty`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
