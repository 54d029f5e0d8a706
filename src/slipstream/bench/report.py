"""What people read of a record: some lines, a table, and what to know of its numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.bench.table import fitting, grid

__all__ = ["QUARTILES", "Report", "encryption", "ratio_text"]

QUARTILES = len("10.00x [10.00-10.00]")  # characters of a `ratio_text`,
_RATIO = len("10.00x")  # and of its first word
_KEYS = ("size (B)", "contender")  # columns that say which line it is


@dataclass(frozen=True)
class Report:
    """``lines`` have a cell for each column of ``head``, or end early with a text instead of figures.

    ``dispensable``: columns that move to a further table on a narrow terminal, first to last. After them ratios lose
    their quartiles there; then the columns from the first ratio on move, the last one first.
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

    def tables(self, width: int) -> list[Report]:
        """The table as several, each in ``width`` characters: the first has what matters most, the others the rest."""
        whole = self._with(self.dispensable, width)
        brief = whole.width() > width
        found = [self._in_brief(width) if brief else whole]
        keys = [name for name in self.head if name in _KEYS]
        missing = [name for name in self.head if name not in found[0].head or (brief and _is_ratio(name))]
        rest = dataclasses.replace(self, lines=[line for line in self.lines if len(line) == len(self.head)])
        while missing:
            part = rest._only([*keys, *missing])
            while part.width() > width and len(part.head) > len(keys) + 1:
                part = rest._only(part.head[:-1])
            found.append(part)
            missing = [name for name in missing if name not in part.head]
        return found

    def _only(self, names: Sequence[str]) -> Report:
        places = [self.head.index(name) for name in names]
        lines = [[line[at] for at in places if at < len(line)] for line in self.lines]
        return dataclasses.replace(self, head=list(names), lines=lines)

    def _in_brief(self, width: int) -> Report:
        first = next((at for at, name in enumerate(self.head) if _is_ratio(name)), len(self.head))
        return self._brief()._with([*self.dispensable, *reversed(self.head[first:])], width)

    def width(self) -> int:
        """Characters of a line, with two between columns."""
        sizes = self.sizes()
        return sum(sizes) + 2 * len(sizes) - 2

    def _with(self, dispensable: Sequence[str], width: int) -> Report:
        line = ["x" * size for size in self.sizes()]
        kept = fitting(self.head, [line], width + 2, 2, dispensable)
        return self._only([self.head[at] for at in kept])

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
