"""``slipstream timeline``: what to do with files of timelines."""

from __future__ import annotations

import json
from typing import Any

import click

from slipstream.bench.table import grid, size_text, time_text
from slipstream.observe.chrome import line
from slipstream.observe.trace_file import TraceFile
from slipstream.observe.trace_reading import jobs_of, load, merged
from slipstream.observe.trace_summary import CLASSES, summarised

__all__ = ["timeline"]

_EPILOG = """\b
Examples:
  slipstream timeline summary trace.json
  slipstream timeline merge trace-0.json trace-1.json -o trace.json
"""
_EPILOG_MERGE = """\b
Example:
  slipstream timeline merge trace-0.json trace-1.json -o trace.json
"""
_EPILOG_SUMMARY = """\b
Examples:
  slipstream timeline summary trace.json
  slipstream timeline summary trace.json --json
"""
_HELP = {"help_option_names": ["-h", "--help"]}
_BATCH = 10_000  # events


@click.group(context_settings=_HELP, epilog=_EPILOG)
def timeline() -> None:
    """Merges files of timelines, and says in numbers what is in them.

    slipstream run --timeline FILE writes one. Look at it at ui.perfetto.dev or in chrome://tracing.
    """


@timeline.command(epilog=_EPILOG_MERGE)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", required=True, help="The file to write.")
def merge(files: tuple[str, ...], output: str) -> None:
    """Joins timelines of several ranks of a job: what --timeline 'trace-{rank}.json' has written."""
    if output in files:
        raise click.UsageError(f"-o: {output} is one of the files to merge")
    loaded = [_load(file) for file in files]
    jobs = sorted({job for one in loaded for job in jobs_of(one)})
    if len(jobs) > 1:
        click.echo(f"Warning: the files are of {len(jobs)} starts of jobs: {', '.join(jobs)}", err=True)
    events = merged(loaded)
    try:
        out = TraceFile(output)
        for at in range(0, len(events), _BATCH):
            out.write([line(event) for event in events[at : at + _BATCH]])
        out.finish()
    except OSError as error:
        raise click.ClickException(f"cannot write {output}: {error.strerror}") from None
    click.echo(f"{output}: {len(events)} events of {len({event.get('pid') for event in events})} ranks")


@timeline.command(epilog=_EPILOG_SUMMARY)
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Times are seconds, rates bytes a second.")
def summary(file: str, as_json: bool) -> None:
    """Prints operations by kind and size, the busiest links, and the communication that steps wait for."""
    found = summarised(_load(file))
    click.echo(json.dumps(found, indent=2) if as_json else _text(found))


def _load(file: str) -> list[dict[str, Any]]:
    try:
        return load(file)
    except OSError as error:
        raise click.ClickException(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _text(found: dict[str, Any]) -> str:
    ranks = "1 rank" if found["ranks"] == 1 else f"{found['ranks']} ranks"
    parts = [
        f"{ranks}, {time_text(found['seconds'])}",
        f"Operations of all ranks\n\n{_operations(found['operations'])}",
    ]
    if found["steps"]:
        parts += ["Steps", _steps(found["steps"])]
    if found["links"]:
        parts += ["Busiest links", _links(found["links"])]
    parts += [text for text in (_negotiation(found["negotiation"]), _trouble(found)) if text]
    return "\n\n".join(parts)


def _operations(rows: list[dict[str, Any]]) -> str:
    head = ("operation", "size", "count", "median", "95 % below", "total", "rate")
    return grid(head, [_operation(row) for row in rows])


def _operation(row: dict[str, Any]) -> list[str]:
    most = row["most_bytes"]
    return [
        row["operation"],
        f"over {size_text(CLASSES[-1])}" if most is None else f"to {size_text(most)}",
        str(row["count"]),
        time_text(row["median"]),
        time_text(row["p95"]),
        time_text(row["total"]),
        f"{8e-6 * row['rate']:.0f} Mbit/s",
    ]


def _steps(rows: list[dict[str, Any]]) -> str:
    def share(row: dict[str, Any], key: str) -> str:
        return f"{time_text(row[key])} ({100 * row[key] / row['seconds']:.0f} %)"

    head = ("rank", "steps", "median", "total", "communication (of total)", "exposed (of total)")
    lines = [
        [
            str(row["rank"]),
            str(row["steps"]),
            time_text(row["median"]),
            time_text(row["seconds"]),
            share(row, "communication"),
            share(row, "exposed"),
        ]
        for row in rows
    ]
    return grid(head, lines)


def _links(rows: list[dict[str, Any]]) -> str:
    head = ("from rank", "to rank", "transport", "sent", "received")
    return grid(
        head,
        [
            [str(r["rank"]), str(r["peer"]), r["transport"], size_text(r["sent"]), size_text(r["received"])]
            for r in rows
        ],
    )


def _negotiation(found: dict[str, Any]) -> str:
    if not found["count"]:
        return ""
    return f"Negotiation: {found['count']} operations waited for all ranks, {time_text(found['median'])} in the median"


def _trouble(found: dict[str, Any]) -> str:
    counts = [
        f"{found[key]} {words}"
        for key, words in (
            ("errors", "operations failed"),
            ("lanes_lost", "lanes were lost"),
            ("dropped", "events were dropped"),
        )
        if found[key]
    ]
    return "; ".join(counts)
