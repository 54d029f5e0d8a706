"""Files that ranks write, and whether they can."""

from __future__ import annotations

import os
import stat

from slipstream.base.errors import SlipstreamError

__all__ = ["CannotWrite", "is_pipe", "objection", "summary_file"]


class CannotWrite(SlipstreamError, OSError):
    """A rank cannot write a file that it was asked for."""


def objection(path: str) -> str:
    """Why ``path`` cannot be written, as far as one sees without writing; "" if it can."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        return "it is a folder"
    if is_pipe(path):
        return "it is a pipe, for whose reader the job would wait; give a file"
    if os.path.exists(path):
        return "" if os.access(path, os.W_OK) else "permission denied"
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"permission denied in folder {folder}"


def is_pipe(path: str) -> bool:
    """Whether opening ``path`` may wait for another process."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def summary_file(setting: str, rank: int) -> str | None:
    """The file into which ``rank`` writes the summary by the setting of that name; None: it writes none."""
    return setting if rank == 0 and setting not in ("0", "1") else None
