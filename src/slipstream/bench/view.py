"""Shows reports as they are measured: a table that grows on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
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
        yield _plain(out)


class _Rich:
    """What we take from rich, which need not be installed."""

    def __init__(self) -> None:
        self.Console: Any = importlib.import_module("rich.console").Console
        self.Group: Any = importlib.import_module("rich.console").Group
        self.Live: Any = importlib.import_module("rich.live").Live
        self.Table: Any = importlib.import_module("rich.table").Table
        self.Text: Any = importlib.import_module("rich.text").Text
        self.box: Any = importlib.import_module("rich.box").SIMPLE_HEAD


def _plain(out: TextIO) -> Show:
    """Lines of the terminal's width, or COLUMNS, or 80 characters: what does not fit is in the JSON."""
    width = shutil.get_terminal_size().columns
    shown = 0

    def wrapped(text: str) -> list[str]:
        return textwrap.wrap(f"# {text}", width, subsequent_indent="#   ")

    def show(report: Report) -> None:
        nonlocal shown
        narrow = report.narrowed(width)
        sizes = narrow.sizes()
        lines = [plain_row(narrow.head, cells, sizes) for cells in (narrow.head, *narrow.lines)]
        lines = [part for text in report.heading for part in wrapped(text)] + lines
        lines += [part for text in report.notes for part in wrapped(text)]
        print("\n".join(lines[shown:]), file=out, flush=True)
        shown = len(lines)

    return show


def _live(rich: _Rich, width: int, live: Any) -> Show:
    def show(report: Report) -> None:
        narrow, notes = report.narrowed(width - 2), list(report.notes)
        table = rich.Table(box=rich.box)
        for name in narrow.head:
            table.add_column(name, justify="left" if is_left(name) else "right")
        previous = ""
        for cells in narrow.lines:
            if not is_left(narrow.head[0]):  # lines of one size stand together
                if previous not in ("", cells[0]):
                    table.add_section()
                previous = cells[0]
            style = _style(narrow.head, cells)
            full = list(cells)
            if len(full) < len(narrow.head):  # a text instead of figures, which would widen its column
                notes.append(f"{full[0]} B, {full[-2]}: {full.pop()}")
                full += [""] * (len(narrow.head) - len(full))
            table.add_row(*map(rich.Text, full), style=style)
        texts = [rich.Text(line) for line in report.heading]
        live.update(rich.Group(*texts, table, *map(rich.Text, notes)), refresh=True)

    return show


def _style(head: Sequence[str], cells: Sequence[str]) -> str | None:
    if len(cells) < len(head):
        return "dim"
    row = dict(zip(head, cells, strict=True))
    if row["#wrong"] not in ("0", "n/a"):
        return "bold red"
    return "bold" if row["contender"] == "slipstream" else None
