"""``slipstream top``: what the ranks of a running job do, each second, in a terminal; or once, as JSON."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from slipstream.base.errors import Refused
from slipstream.base.units import format_size

if TYPE_CHECKING:  # the engine is loaded once the command runs
    from slipstream.observe.metrics import Snapshot
    from slipstream.observe.metrics_jobs import Entry

__all__ = ["rows", "table", "top"]

_PERIOD = 1.0  # seconds
_HEAD = (
    "rank",
    "host",
    "state",
    "steps",
    "step",
    "compute",
    "exposed",
    "send",
    "recv",
    "lanes",
    "stalls",
    "",
)

_EPILOG = """\b
Examples:
  slipstream top
  slipstream top --job train --once
  slipstream top --once --json
"""

Row = dict[str, Any]


@click.command(epilog=_EPILOG)
@click.option(
    "--job", "wanted", metavar="NAME|PID", help="Which job, by its name or a process of it, if several run."
)
@click.option("--once", is_flag=True, help="Show it once, over one second, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with --once.")
def top(wanted: str | None, once: bool, as_json: bool) -> None:
    """Shows what the ranks of a running job of yours do: steps, waits, rates, and who is the straggler.

    It finds jobs that have ranks on this machine, and asks all of their ranks, on other hosts too. Ctrl-C ends it.
    """
    if as_json and not once:
        raise click.UsageError("--json needs --once")
    entry = _chosen(wanted)
    views = _views(entry)
    if once:
        _show_once(entry, next(views), as_json)
        return
    with _screen() as show:
        for found in views:
            show(_text(entry, found))


def _chosen(wanted: str | None) -> Entry:
    from slipstream.observe.metrics_jobs import found_jobs

    try:
        jobs = found_jobs()
    except (OSError, Refused) as error:
        raise click.ClickException(str(error)) from None
    if wanted is not None:
        jobs = [one for one in jobs if wanted in (one.job, str(one.pid))]
    if not jobs:
        what = f"no job {wanted!r}" if wanted is not None else "no job"
        raise click.ClickException(
            f"{what} of this user has ranks on this machine. Jobs of one rank, and those with SLIPSTREAM_TOP=0, are "
            "not found; run this on a host of the job"
        )
    if len(jobs) > 1:
        lines = [
            f"  --job {one.pid}   {one.job!r}, {len(one.addresses)} ranks: {one.command}" for one in jobs
        ]
        raise click.ClickException("\n".join(["several jobs run; choose one:", *lines]))
    return jobs[0]


def _views(entry: Entry) -> Iterator[list[Row]]:
    """The rows at each moment, for ever; ends when no rank answers any more."""
    from slipstream.observe.metrics_exchange import ask_all
    from slipstream.observe.metrics_jobs import found_jobs

    def asked() -> list[Snapshot | None]:
        return ask_all(entry.places(), bytes.fromhex(entry.key), entry.name, encrypt=entry.encrypt)

    before = asked()
    while True:
        time.sleep(_PERIOD)
        now = asked()
        if not any(now) and all(one.name != entry.name for one in found_jobs()):
            if not any(before):
                raise click.ClickException("no rank of the job answers")
            return
        yield rows(now, before)
        before = now


def rows(now: Sequence[Snapshot | None], before: Sequence[Snapshot | None]) -> list[Row]:
    """What is shown of each rank: of its snapshot, and of an earlier one, for the rates (bytes a second)."""
    from slipstream.observe.straggler import find_straggler

    straggler = find_straggler([one for one in now if one])
    return [_row(rank, one, before[rank], straggler) for rank, one in enumerate(now)]


def _row(rank: int, now: Snapshot | None, before: Snapshot | None, straggler: Any) -> Row:
    if now is None:
        return {"rank": rank, "host": "", "state": "no answer"}
    recent, waits = now["steps"]["recent"], straggler is not None and rank in straggler.ranks
    step = recent["median"]
    row: Row = {
        "rank": rank,
        "host": now["host"],
        "state": now["state"],
        "steps": now["steps"]["count"],
        "step": step,
        "compute": recent["compute"] / step if step else 0.0,
        "exposed": recent["exposed"] / step if step else 0.0,
        "send": _rate("sent", now, before),
        "recv": _rate("received", now, before),
        "lanes": sum(link["lanes_up"] for link in now["links"]),
        "stalls": now["stalls"],
        "straggler": straggler.cause if waits else "",
    }
    if waits:
        row["why"] = straggler.text
    return row


def _rate(name: str, now: Snapshot, before: Snapshot | None) -> float:
    if before is None or now["time"] <= before["time"]:
        return 0.0
    more = sum(link[name] for link in now["links"]) - sum(link[name] for link in before["links"])
    return float(max(0, more) / (now["time"] - before["time"]))


def table(found: Sequence[Row]) -> list[list[str]]:
    """The cells of the rows, as text, below their heads."""
    return [list(_HEAD), *(_cells(row) for row in found)]


def _cells(row: Row) -> list[str]:
    if "steps" not in row:
        return [str(row["rank"]), row["host"], row["state"], *[""] * (len(_HEAD) - 3)]
    steps = row["steps"]
    return [
        str(row["rank"]),
        row["host"],
        row["state"][:40],
        str(steps),
        f"{row['step'] * 1e3:.4g} ms" if steps else "-",
        f"{row['compute']:.0%}" if steps else "-",
        f"{row['exposed']:.0%}" if steps else "-",
        f"{format_size(row['send'])}/s",
        f"{format_size(row['recv'])}/s",
        str(row["lanes"]),
        str(row["stalls"]),
        f"<- straggler ({row['straggler']})" if row["straggler"] else "",
    ]


def _text(entry: Entry, found: Sequence[Row]) -> str:
    cells = table(found)
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEAD))]
    title = f"job {entry.job!r}, {len(found)} ranks: {entry.command}"
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    reasons = sorted({row["why"] for row in found if "why" in row})
    return "\n".join([title, *lines, *reasons])


def _show_once(entry: Entry, found: Sequence[Row], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"job": entry.job, "command": entry.command, "ranks": list(found)}, indent=2))
    else:
        click.echo(_text(entry, found))


class _screen:
    """Shows a text in the place of the one before: by rich where that is installed, else below it."""

    def __enter__(self) -> Any:
        self._live: Any = None
        if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
            self._text: Any = importlib.import_module("rich.text").Text
            self._live = importlib.import_module("rich.live").Live(auto_refresh=False, screen=True)
            self._live.start()
        return self._show

    def _show(self, text: str) -> None:
        if self._live is None:
            click.echo(text + "\n")
            return
        shown = self._text(text, no_wrap=True)
        shown.highlight_regex(r"(?m)^.*<- straggler.*$", "bold yellow")
        shown.highlight_regex(r"(?m)^.*(no answer|failed:).*$", "bold red")
        self._live.update(shown, refresh=True)

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
