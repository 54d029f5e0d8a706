"""Shows reports as they are measured: a table that grows on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from slipstream.bench.report import Report
from slipstream.bench.table import is_left, plain_row

__all__ = ["Show", "showing"]

Show = Callable[[Report], None]


@contextlib.contextmanager
def showing(out: TextIO) -> Iterator[Show]:
    """Gives a function that shows a report on ``out``, and shows it again whenever it has more lines.

    On a terminal where rich is installed rich does it. Otherwise only what is new is printed.
    """
    if out.isatty() and importlib.util.find_spec("rich") is not None:
        rich = _Rich()
        console = rich.Console(file=out)
        # Its own thread would take time from the ranks: it paints when there is something new.
        with rich.Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            yield _live(rich, console.width, live)
    else:
        with _plain(out) as show:
            yield show


class _Rich:
    """What we take from rich, which need not be installed."""

    def __init__(self) -> None:
        self.Console: Any = importlib.import_module("rich.console").Console
        self.Group: Any = importlib.import_module("rich.console").Group
        self.Live: Any = importlib.import_module("rich.live").Live
        self.Table: Any = importlib.import_module("rich.table").Table
        self.Text: Any = importlib.import_module("rich.text").Text
        self.box: Any = importlib.import_module("rich.box").SIMPLE_HEAD


def _width(out: TextIO) -> int:
    """Of the terminal, or COLUMNS. No line is too long for a file or a pipe."""
    if out.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return sys.maxsize


@contextlib.contextmanager
def _plain(out: TextIO) -> Iterator[Show]:
    """Lines as they come. Columns for which the terminal is too narrow follow at the end."""
    width = _width(out)
    shown = 0
    further: list[Report] = []

    def wrapped(text: str) -> list[str]:
        return textwrap.wrap(f"# {text}", width, subsequent_indent="#   ")

    def show(report: Report) -> None:
        nonlocal shown
        first, *further[:] = report.tables(width)
        lines = [part for text in report.heading for part in wrapped(text)] + _plain_lines(first)
        lines += [part for text in report.notes for part in wrapped(text)]
        print("\n".join(lines[shown:]), file=out, flush=True)
        shown = len(lines)

    try:
        yield show
    finally:
        for table in (one for one in further if one.lines):
            print("\n".join(["", *_plain_lines(table)]), file=out, flush=True)


def _plain_lines(table: Report) -> list[str]:
    sizes = table.sizes()
    return [plain_row(table.head, cells, sizes) for cells in (table.head, *table.lines)]


def _live(rich: _Rich, width: int, live: Any) -> Show:
    def show(report: Report) -> None:
        notes = list(report.notes)
        tables = [_rich_table(rich, table, notes) for table in report.tables(width - 2)]
        texts = [rich.Text(line) for line in report.heading]
        live.update(rich.Group(*texts, *tables, *map(rich.Text, notes)), refresh=True)

    return show


def _rich_table(rich: _Rich, report: Report, notes: list[str]) -> Any:
    table = rich.Table(box=rich.box)
    for name in report.head:
        table.add_column(name, justify="left" if is_left(name) else "right")
    previous = ""
    for cells in report.lines:
        if not is_left(report.head[0]):  # lines of one size stand together
            if previous not in ("", cells[0]):
                table.add_section()
            previous = cells[0]
        style = _style(report.head, cells)
        full = list(cells)
        if len(full) < len(report.head):  # a text instead of figures, which would widen its column
            notes.append(f"{full[0]} B, {full[-2]}: {full.pop()}")
            full += [""] * (len(report.head) - len(full))
        table.add_row(*map(rich.Text, full), style=style)
    return table


def _style(head: Sequence[str], cells: Sequence[str]) -> str | None:
    if len(cells) < len(head):
        return "dim"
    row = dict(zip(head, cells, strict=True))
    if row.get("#wrong", "0") not in ("0", "n/a"):
        return "bold red"
    return "bold" if row["contender"] == "slipstream" else None
