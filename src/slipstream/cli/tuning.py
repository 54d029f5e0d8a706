"""``slipstream check --tuning``: what jobs have chosen, on which clusters, and what it gained."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from slipstream.base.settings import Settings
from slipstream.comm.tuning.cache import Entry, cache_file, read

__all__ = ["show_tuning"]

_DAY, _HOUR, _MINUTE = 86400, 3600, 60


def show_tuning(*, as_json: bool, clear: bool) -> int:
    """Prints the cache, or removes it; returns the exit code, which is 1 if the file is broken, or stays."""
    try:
        path = cache_file(Settings.from_environment().tuning_cache)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if path is None:
        click.echo("there is no cache: SLIPSTREAM_TUNING_CACHE is off, or there is no home directory")
        return 0
    try:
        if clear:
            path.unlink(missing_ok=True)
            click.echo(f"forgotten: {path}")
            return 0
        entries = read(path)
    except (OSError, ValueError) as error:
        click.echo(
            f"{path}: {error}: jobs do not use it; `slipstream check --tuning --clear` removes it", err=True
        )
        return 1
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return 0
    click.echo(f"{path}: {len(entries)} choice{'' if len(entries) == 1 else 's'}")
    for cluster in dict.fromkeys(entry.cluster for entry in entries):
        click.echo(f"\n{cluster}")
        for entry in sorted(entries, key=lambda one: (one.tunes, one.magnitude, one.traffic.wire)):
            if entry.cluster == cluster:
                click.echo(f"  {_line(entry)}")
    return 0


def _line(entry: Entry) -> str:
    gain = f"{entry.before / entry.seconds:.2f}x" if entry.seconds else "-"
    times = f"{1e3 * entry.seconds:.3g} ms; with the defaults {1e3 * entry.before:.3g} ms ({gain})"
    wire = f" as {entry.wire}" if entry.traffic.wire else ""
    sizes = f"all_reduce below {_size(1 << entry.magnitude)}{wire}"
    age = _age(time.time() - entry.when)
    return f"{sizes}, --autotune {entry.tunes}: {entry.candidate}: {times}; chosen {age} ago"


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def _age(seconds: float) -> str:
    for unit, letter in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {letter}"
    return f"{max(seconds, 0):.0f} s"
