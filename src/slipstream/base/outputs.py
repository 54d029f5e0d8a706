"""Files that ranks write, and whether they can."""

from __future__ import annotations

import os

from slipstream.base.errors import SlipstreamError

__all__ = ["CannotWrite", "objection", "summary_file"]


class CannotWrite(SlipstreamError, OSError):
    """A rank cannot write a file that it was asked for."""


def objection(path: str) -> str:
    """Why ``path`` cannot be written, as far as one sees without writing; "" if it can."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        return "it is a folder"
    if os.path.exists(path):
        return "" if os.access(path, os.W_OK) else "permission denied"
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"permission denied in folder {folder}"


def summary_file(setting: str, rank: int) -> str | None:
    """The file into which ``rank`` writes the summary by the setting of that name; None: it writes none."""
    return setting if rank == 0 and setting not in ("0", "1") else None
