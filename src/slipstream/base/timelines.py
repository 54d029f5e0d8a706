"""The files of a timeline: which rank writes which, and whether it can."""

from __future__ import annotations

import os

__all__ = ["file_of", "is_one_for_all", "objection"]

_RANK = "{rank}"


def is_one_for_all(template: str) -> bool:
    """Whether one file is for all ranks; else each rank has its own."""
    return _RANK not in template


def file_of(template: str, rank: int) -> str | None:
    """The file that ``rank`` writes: ``{rank}`` is replaced by its number; without it rank 0 writes one for all."""
    if is_one_for_all(template):
        return template if rank == 0 else None
    return template.replace(_RANK, str(rank))


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
