"""Shows rows as they are measured: a table that grows on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TextIO

from slipstream.bench.table import columns, heading, narrow, plain_row, rows, widths

__all__ = ["Show", "showing"]

Record = Mapping[str, Any]


class Show(Protocol):
    """Takes what `slipstream.bench.measurement.measure` has to show."""

    def __call__(self, record: Record, size: Record | None) -> None:
        """``size`` is None once, before any size is measured."""


@contextlib.contextmanager
def showing(out: TextIO) -> Iterator[Show]:
    """Gives a function that shows records on ``out``: by rich, where that is a terminal and rich is installed."""
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

    def show(record: Record, size: Record | None) -> None:
        kept, brief = narrow(record, width)
        sizes = [widths(record, brief=brief)[at] for at in kept]
        if size is None:
            wrapped = [textwrap.wrap(line, width, subsequent_indent="#   ") for line in _comments(record)]
            lines = [part for parts in wrapped for part in parts]
            lines.append(plain_row([columns(record)[at] for at in kept], sizes))
        else:
            found = rows(record, size, brief=brief)
            lines = [plain_row([cells[at] for at in kept if at < len(cells)], sizes) for cells in found]
        print("\n".join(lines), file=out, flush=True)

    return show


def _comments(record: Record) -> list[str]:
    return ["# " + line for line in heading(record)]


def _live(rich: _Rich, width: int, live: Any) -> Show:
    def show(record: Record, size: Record | None) -> None:
        head = columns(record)
        kept, brief = narrow(record, width - 2)
        lines = [(one, cells) for one in record["sizes"] for cells in rows(record, one, brief=brief)]
        notes = []
        table = rich.Table(box=rich.box)
        for at in kept:
            left = head[at] in ("type", "redop", "contender")
            table.add_column(head[at], justify="left" if left else "right")
        for number, (one, cells) in enumerate(lines):
            if number and lines[number - 1][0] is not one:
                table.add_section()
            name = cells[head.index("contender")]
            if len(cells) < len(head):  # a text instead of figures, which would widen its column
                notes.append(f"{cells[0]} B, {name}: {cells.pop()}")
            shown = [rich.Text(cells[at] if at < len(cells) else "") for at in kept]
            table.add_row(*shown, style=_style(one, name))
        texts = [rich.Text(line) for line in heading(record)]
        live.update(rich.Group(*texts, table, *map(rich.Text, notes)), refresh=True)

    return show


def _style(size: Record, name: str) -> str | None:
    row = size["contenders"][name]
    if row.get("wrong"):
        return "bold red"
    if "unsupported" in row:
        return "dim"
    return "bold" if name == "slipstream" else None
