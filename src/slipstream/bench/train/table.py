"""A measurement as text: what was measured, one row per contender, and what to know of the numbers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from slipstream.base.units import format_rate
from slipstream.bench.table import encryption, fitting, grid
from slipstream.bench.train.catalogue import FIGURES
from slipstream.bench.train.options import PLAIN, REDUCING

__all__ = ["markdown", "show"]

# Columns that make way on a narrow terminal, first to last.
_DISPENSABLE = ("min", "p90", "hidden", "efficiency", "samples/s", "overlap", "communication")


def show(record: Mapping[str, Any], to: TextIO | None = None) -> None:
    """Prints a record of `summary.summarise`, by default to standard output. Needs rich.

    As wide as the terminal, or COLUMNS, or 80 characters: what does not fit is in the JSON.
    """
    from rich.console import Console
    from rich.table import Table

    width = shutil.get_terminal_size().columns
    console = Console(file=to or sys.stdout, width=width, highlight=False)
    console.print(_headline(record), markup=False)
    columns, rows = _fitting(record, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column == "contender" else "right")
    for row in rows:
        table.add_row(*row, style=None if row[-1] == "0" else "bold red")
    console.print(table)
    for note in _notes(record):
        console.print(note, markup=False)


def _fitting(record: Mapping[str, Any], width: int) -> tuple[list[str], list[list[str]]]:
    """The columns that fit ``width`` characters, and their rows; where too many are left, ratios lose quartiles."""
    for brief in (False, True):
        columns, rows = _cells(record, brief)
        kept = fitting(columns, rows, width, 2, _DISPENSABLE)
        columns, rows = [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]
        if sum(max(map(len, cells)) + 2 for cells in zip(columns, *rows, strict=True)) <= width:
            break
    return columns, rows


def markdown(record: Mapping[str, Any]) -> str:
    """The same as Markdown, for a page."""
    machine = record["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}"
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        f"{record['date']}: {where}; {versions}.",
        "",
        f"{_headline(record)}.",
        "",
        grid(*_cells(record)),
        "",
    ]
    return "\n".join([*lines, " ".join(_notes(record))])


def _headline(record: Mapping[str, Any]) -> str:
    options = record["options"]
    batch = f", {options['batch']} samples a rank" if options["batch"] else ""
    figure = FIGURES.get(options["model"])
    known = f", as on a {figure.gpu}" if figure and figure.seconds == options["seconds"] else ""
    compute = "real" if options["compute"] == "real" else f"a delay of {_ms(options['seconds'])}{known}"
    return (
        f"{options['model']}: {record['parameters']:,} parameters in {record['tensors']} tensors, "
        f"{record['bytes'] / 1e6:.1f} MB of gradients; {record['ranks']} ranks on {_hosts(record['hosts'])}; "
        + "; ".join([f"compute: {compute}{batch}", *encryption(record)])
    )


def _cells(record: Mapping[str, Any], brief: bool = False) -> tuple[list[str], list[list[str]]]:
    """The heads of the columns, and a row a contender."""
    contenders = record["contenders"]
    peers = [name for name in contenders if name not in (PLAIN, "slipstream")]
    sampled = contenders[PLAIN]["samples_per_second"] is not None
    columns = [
        "contender",
        "step",
        "min",
        "p90",
        "communication",
        "exposed",
        "hidden",
        "overlap",
        "efficiency",
    ]
    priced = "cost_per_1000_steps" in contenders[PLAIN]
    columns += [*(["samples/s"] if sampled else []), *(["cost/1000 steps"] if priced else [])]
    columns += [*(f"vs {peer}" for peer in peers), "wrong"]
    rows = []
    for name, row in contenders.items():
        cells = [name, *(_ms(row["step"][key]) for key in ("median", "min", "p90"))]
        if name == PLAIN:
            cells += [""] * 5
        else:
            cells += [_ms(row["communication"]["median"]), _ms(row["exposed"]), _ms(row["hidden"])]
            cells += [_percent(row["overlap"]), _percent(row["efficiency"])]
        cells += [f"{row['samples_per_second']:.1f}"] if sampled else []
        cells += [f"{row['cost_per_1000_steps']:.4g}"] if priced else []
        cells += [_ratio(row["ratio"].get(peer), brief) for peer in peers]
        rows.append([*cells, str(row["wrong"])])
    return columns, rows


def _notes(record: Mapping[str, Any]) -> list[str]:
    options, limit = record["options"], record["limit"]
    notes = [
        f"Steps: {options['repeats']} turns of {options['steps']}, the slowest rank of each. "
        f"Communication: the same buckets, all-reduced back to back. vs: its time to this row's [quartiles]."
    ]
    if options["compute"] == "delay":
        off = record["plain"] / options["seconds"] - 1 if options["seconds"] else 0.0
        notes.append(f"The plain step is {100 * off:+.1f} % of the time asked for.")
    if limit:
        notes.append(
            f"Limit at {format_rate(limit['link_rate'])}/s a host: communication {_ms(limit['communication'])}, "
            f"step {_ms(limit['step'])}."
        )
    notes += _of_reducers(record)
    notes.append(f"Memory of the largest rank: {record['peak_memory'] / 2**30:.2f} GiB.")
    notes += ["nccl: its gradients are in GPU memory."] if "nccl" in record["contenders"] else []
    notes += [f"Missing: {name}: {reason}." for name, reason in record["missing"].items()]
    wrong = [name for name, row in record["contenders"].items() if row["wrong"]]
    notes += [f"WRONG GRADIENTS: {', '.join(wrong)}. These times mean nothing."] if wrong else []
    return notes


def _of_reducers(record: Mapping[str, Any]) -> list[str]:
    reducers, limit, options = record.get("reducers") or {}, record["limit"], record["options"]
    notes = []
    if reducers:
        text = f"{len(reducers)} reducers, used by {' and '.join(n for n in REDUCING if n in record['contenders'])}"
        if limit:
            text += (
                f"; limit beside as many of a host's rate: communication "
                f"{_ms(limit['communication_beside_reducers'])}, step {_ms(limit['step_beside_reducers'])}"
            )
        notes.append(text + ".")
    lost = [name for name, used in reducers.items() if not used]
    notes += [f"NOT USED AT THE END: {', '.join(lost)}. These times are not of all reducers."] if lost else []
    relative = record["contenders"].get("slipstream", {}).get("relative_cost")
    if relative:
        shares = ", ".join(f"{100 * share:.1f} % of {peer}'s" for peer, share in relative.items())
        prices = f"a host {options['worker_price']:g} an hour, a reducer {options['reducer_price']:g}"
        notes.append(f"Cost of slipstream's step: {shares} ({prices}).")
    return notes


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _ratio(found: Mapping[str, float] | None, brief: bool) -> str:
    if found is None:
        return ""
    quartiles = "" if brief else f" [{found['low']:.2f}-{found['high']:.2f}]"
    return f"{found['median']:.2f}x{quartiles}"
