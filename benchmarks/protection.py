"""What checksums and encryption cost, in time and in CPU time: 2 ranks over loopback, and on the 2 hosts of labs.

    python benchmarks/protection.py                    # all: five minutes; labs need root
    python benchmarks/protection.py loopback           # one of loopback, lab, 1gbit
    python benchmarks/protection.py --repeats 9 --save # keep the record, and renew docs/benchmarks.md

Jobs with and without take turns. The links of `lab` have no rate, so that the processors are what limits, as they are
over loopback; `1gbit` says what is left of that on a network. Every job checks its values at the end. Ends with code 1
if one was wrong or a job failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import slipstream
from slipstream.bench.machine import cpu_seconds
from slipstream.bench.page import renew
from slipstream.bench.record import head, keep, origin
from slipstream.bench.shell import SLIPSTREAM, last_object
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_BYTES = 64 << 20
_KINDS = {
    "plain": {"SLIPSTREAM_CHECKSUM": "off"},
    "checksums": {"SLIPSTREAM_CHECKSUM": "on"},
    "encrypted": {"SLIPSTREAM_ENCRYPT": "1"},
}
_PLACES: dict[str, list[str]] = {
    "loopback": [],
    "lab": [*SLIPSTREAM, "lab", "run", "-q", "--hosts", "2", "--"],
    "1gbit": [*SLIPSTREAM, "lab", "run", "-q", "--hosts", "2", "--rate", "1gbit", "--"],
}

Found = dict[str, dict[str, list[float]]]  # by kind: "wall" and "cpu", seconds per GB that a rank puts in


def _rank(seconds: float) -> None:
    """Rank 0 prints the time of a call, and the CPU time of both ranks, in seconds per GB that a rank puts in."""
    slipstream.init()
    data = np.ones(_BYTES // 4, np.float32)  # of which the average stays 1, unless a call gets one wrong
    for _ in range(2):
        slipstream.all_reduce(data, op="avg", out=data)
    calls = 0
    start, used = time.perf_counter(), cpu_seconds()
    while True:
        slipstream.all_reduce(data, op="avg", out=data)
        calls += 1
        took = time.perf_counter() - start
        if slipstream.all_reduce(np.array([took]), op="max")[0] >= seconds:
            break
    cpu = float(slipstream.all_reduce(np.array([cpu_seconds() - used]))[0])
    if not (data == 1).all():
        raise SystemExit(f"rank {slipstream.rank()}: a wrong value")
    if slipstream.rank() == 0:
        size = calls * _BYTES / 1e9
        print(json.dumps({"wall": took / size, "cpu": cpu / slipstream.size() / size}), flush=True)
    slipstream.shutdown()


def measure(place: str, repeats: int, seconds: float) -> Found:
    """The jobs of all kinds, in turns, at one of `_PLACES`."""
    found: Found = {kind: {"wall": [], "cpu": []} for kind in _KINDS}
    rank = [sys.executable, str(Path(__file__).resolve()), "--rank", "--seconds", str(seconds)]
    run = [*SLIPSTREAM, "run", "-np", "2", "--no-prefix", "--", *rank]
    for _ in range(repeats):
        for kind, settings in _KINDS.items():
            variables = [f"{name}={value}" for name, value in settings.items()]
            command = [*_PLACES[place], "env", "SLIPSTREAM_TRANSPORT=tcp", *variables, *run]
            for what, figure in last_object(command).items():
                found[kind][what].append(figure)
    return found


def rows(place: str, found: Found) -> list[tuple[str, ...]]:
    """The lines of the table: medians, and what they are of the plain ones."""
    plain = {what: statistics.median(found["plain"][what]) for what in ("wall", "cpu")}
    lines: list[tuple[str, ...]] = []
    for kind, samples in found.items():
        wall, cpu = (statistics.median(samples[what]) for what in ("wall", "cpu"))
        lines.append(
            (
                f"{place}, {kind}",
                f"{1 / wall:.2f}",
                f"{plain['wall'] / wall:.2f}",
                f"{cpu:.2f}",
                f"{min(samples['cpu']):.2f} to {max(samples['cpu']):.2f}",
                f"{cpu / plain['cpu']:.2f}",
                f"{cpu / wall:.3f}",
            )
        )
    return lines


_COLUMNS = ("job", "GB/s", "of plain", "CPU s/GB", "spread", "of plain", "cores")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("places", nargs="*", metavar="PLACE", help=f"of {', '.join(_PLACES)}; all by default")
    parser.add_argument("--repeats", type=int, default=5, help="jobs of each kind (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of calls in a job (3)")
    parser.add_argument("--save", action="store_true", help="keep the record, renew docs/benchmarks.md")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # be one
    given = parser.parse_args(arguments)
    if given.rank:
        _rank(given.seconds)
        return 0
    unknown = sorted(set(given.places) - set(_PLACES))
    if unknown:
        parser.error(f"no place {', '.join(unknown)}: expected some of {', '.join(_PLACES)}")
    record = head("protection")
    table: list[tuple[str, ...]] = []
    for place in given.places or _PLACES:
        try:
            record[place] = measure(place, given.repeats, given.seconds)
        except subprocess.CalledProcessError as error:
            print(f"protection: a job failed with code {error.returncode}", file=sys.stderr)
            return 1
        table += rows(place, record[place])
    print(grid(_COLUMNS, table))
    if given.save:
        keep(record, "protection", _HERE / "results")
        renew(_DOCUMENT, "protection", page(record))
    return 0


def page(record: Mapping[str, Any]) -> str:
    """What docs/benchmarks.md says of a record."""
    places = [place for place in _PLACES if place in record]
    repeats = len(record[places[0]]["plain"]["wall"])
    about = f"{origin(record)}. {repeats} jobs of each kind, 64 MiB, 2 ranks."
    table = [row for place in places for row in rows(place, record[place])]
    return f"{about}\n\n{grid(_COLUMNS, table)}"


if __name__ == "__main__":
    sys.exit(main())
