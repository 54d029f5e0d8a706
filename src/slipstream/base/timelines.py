"""The files of a timeline: which rank writes which."""

from __future__ import annotations

__all__ = ["file_of", "is_one_for_all"]

_RANK = "{rank}"


def is_one_for_all(template: str) -> bool:
    """Whether one file is for all ranks; else each rank has its own."""
    return _RANK not in template


def file_of(template: str, rank: int) -> str | None:
    """The file that ``rank`` writes: ``{rank}`` is replaced by its number; without it rank 0 writes one for all."""
    if is_one_for_all(template):
        return template if rank == 0 else None
    return template.replace(_RANK, str(rank))
