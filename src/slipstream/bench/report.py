"""What people read of a record: some lines, a table, and what to know of its numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.bench.table import fitting, grid

__all__ = ["QUARTILES", "Report", "encryption", "ratio_text"]

QUARTILES = len("10.00x [10.00-10.00]")  # characters of a `ratio_text`,
_RATIO = len("10.00x")  # and of its first word


@dataclass(frozen=True)
class Report:
    """``lines`` have a cell for each column of ``head``, or end early with a text instead of figures.

    ``dispensable``: columns that make way on a narrow terminal, first to last. After them ratios lose their quartiles;
    then the columns from the first ratio on make way, the last one first: a peer's own time has a line of its own.
    ``least``: characters of columns whose lines are shown while others are still to be measured.
    """

    heading: Sequence[str]
    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    dispensable: Sequence[str] = ()
    least: Mapping[str, int] = field(default_factory=dict)

    def markdown(self) -> str:
        """The report as Markdown, for a page."""
        texts = [*(f"{line}." for line in self.heading), grid(self.head, self.lines)]
        return "\n\n".join([*texts, *([" ".join(self.notes)] if self.notes else [])])

    def sizes(self) -> list[int]:
        """Characters of each column: the same while lines are measured, or wide enough for all of them."""
        full = [line for line in self.lines if len(line) == len(self.head) and not self.least]
        return [
            max(len(name), self.least.get(name, 0), *(len(line[at]) for line in full))
            for at, name in enumerate(self.head)
        ]

    def narrowed(self, width: int) -> Report:
        """The same in ``width`` characters, if it can be; a note says which columns are left out."""
        found = self._fitted(width)
        lost = [name for name in self.head if name not in found.head]
        if not lost:
            return found
        note = f"Too narrow for: {', '.join(lost)}. COLUMNS=200 shows them, and so does --json."
        return dataclasses.replace(found, notes=[*found.notes, note])

    def _fitted(self, width: int) -> Report:
        whole = self._with(self.dispensable, width)
        if whole.width() <= width:
            return whole
        first = next((at for at, name in enumerate(self.head) if _is_ratio(name)), len(self.head))
        return self._brief()._with([*self.dispensable, *reversed(self.head[first:])], width)

    def width(self) -> int:
        """Characters of a line, with two between columns."""
        sizes = self.sizes()
        return sum(sizes) + 2 * len(sizes) - 2

    def _with(self, dispensable: Sequence[str], width: int) -> Report:
        line = ["x" * size for size in self.sizes()]
        kept = fitting(self.head, [line], width + 2, 2, dispensable)
        lines = [[one[at] for at in kept if at < len(one)] for one in self.lines]
        return dataclasses.replace(self, head=[self.head[at] for at in kept], lines=lines)

    def _brief(self) -> Report:
        """The same, with ratios that do not show their quartiles."""
        ratios = [at for at, name in enumerate(self.head) if _is_ratio(name)]
        lines = [
            [cell.partition(" [")[0] if at in ratios else cell for at, cell in enumerate(line)]
            for line in self.lines
        ]
        least = {name: _RATIO if _is_ratio(name) else size for name, size in self.least.items()}
        return dataclasses.replace(self, lines=lines, least=least)


def _is_ratio(column: str) -> bool:
    return column.startswith("vs ")


def encryption(record: Mapping[str, object]) -> list[str]:
    """What a heading says of it; nothing for older records, which do not know."""
    known = record.get("encrypted")
    return [] if known is None else ["slipstream's TCP " + ("encrypted" if known else "not encrypted")]


def ratio_text(ratio: Mapping[str, float] | None) -> str:
    """``3.10x [2.95-3.21]``: of medians, and the quartiles over the repeats; nothing where there is none."""
    return "" if ratio is None else f"{ratio['value']:.2f}x [{ratio['low']:.2f}-{ratio['high']:.2f}]"
