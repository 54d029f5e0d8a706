"""Tables of text, and how figures stand in them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fitting", "grid", "is_left", "plain_row", "size_text", "time_text"]

_LEFT = ("type", "redop", "contender")  # columns that hold words


def time_text(seconds: float | None) -> str:
    """``4.7 us``, ``1.25 ms``, ``1.30 s``."""
    if seconds is None:
        return ""
    for unit, name, digits in ((1.0, "s", 2), (1e-3, "ms", 2)):
        if seconds >= unit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds * 1e6:.1f} us"


def size_text(nbytes: int) -> str:
    """``4 B``, ``64 KiB``, ``1.5 MiB``."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{round(nbytes / (1 << power), 2):g} {unit}"
    return f"{nbytes} B"


def is_left(column: str) -> bool:
    """Whether the cells of a column begin at one place; those of all others end at one place."""
    return column in _LEFT


def plain_row(head: Sequence[str], cells: Sequence[str], sizes: Sequence[int]) -> str:
    """A line of a table without rules; a cell that is too long follows as it is."""
    placed = [
        cell.ljust(size) if is_left(name) else cell.rjust(size)
        for name, cell, size in zip(head, cells, sizes, strict=False)
    ]
    return "  ".join(placed).rstrip()


def fitting(
    head: Sequence[str],
    lines: Sequence[Sequence[str]],
    width: int,
    between: int,
    dispensable: Sequence[str],
) -> list[int]:
    """Which columns to show in ``width`` characters, ``between`` after each: the ``dispensable`` ones make way in turn.

    Lines that end early hold a text, not columns, and need no more space.
    """
    kept, lines = list(range(len(head))), [line for line in lines if len(line) == len(head)]
    for least in dispensable:
        sizes = {at: max(len(line[at]) for line in (head, *lines)) for at in kept}
        if sum(sizes.values()) + between * len(kept) <= width:
            break
        kept = [at for at in kept if head[at] != least]
    return kept


def grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    sizes = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
    everything = [head, ["-" * width for width in sizes], *lines]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, sizes, strict=True)) + " |"
        for line in everything
    )
