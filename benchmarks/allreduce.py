"""All-reduce (f32, sum, in place) between processes of this host: slipstream, gloo and Open MPI in one run.

    python benchmarks/allreduce.py                      # 2 and 4 processes, all sizes: a few minutes
    python benchmarks/allreduce.py --np 2 --sizes 64M --repeats 5
    python benchmarks/allreduce.py --json - > result.json
    python benchmarks/allreduce.py --save               # keep it: benchmarks/results/, docs/benchmarks.md

The contenders share the processes and take turns, batch by batch; see docs/benchmarks.md. Ends with code 1
if a result was wrong, 2 if a job failed, and with ``--strict`` 3 if a target was missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import contenders
import jobs
import machine
import report

_HERE = Path(__file__).resolve().parent
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_RANK = _HERE / "allreduce_rank.py"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of ``4``, ``64K`` or ``16M``; ValueError unless that is a number of float32 elements."""
    unit = text[-1:].upper() if text[-1:].isalpha() else ""
    digits = text[: len(text) - len(unit)]
    if unit not in _UNITS or not digits.isdigit() or int(digits) * _UNITS[unit] % 4 or int(digits) == 0:
        raise ValueError(f"{text!r} is not a size: bytes, a multiple of 4, with K, M or G")
    return int(digits) * _UNITS[unit]


def _sizes(text: str) -> list[int]:
    return [parse_size(part) for part in text.split(",")]


def _processes(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 2:
        raise ValueError("an all-reduce needs two processes")
    return numbers


def _peers(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = set(names) - set(contenders.PEERS)
    if unknown:
        raise ValueError(f"unknown peers: {sorted(unknown)}")
    return names


def _checked(parse: Any) -> Any:
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All-reduce on one host: slipstream, gloo, Open MPI.")
    parser.add_argument(
        "-np", "--np", default="2,4", type=_checked(_processes), help="numbers of processes (2,4)"
    )
    parser.add_argument("--sizes", default="4,4K,64K,1M,16M,64M", type=_checked(_sizes))
    parser.add_argument("--repeats", default=15, type=int, help="batches per size and contender (15)")
    parser.add_argument(
        "--peers", default=",".join(contenders.PEERS), type=_checked(_peers), help="gloo,mpi, or less"
    )
    parser.add_argument("--transport", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--json", metavar="FILE", help="write all samples there; - for standard output")
    parser.add_argument("--save", action="store_true", help="keep them, and renew docs/benchmarks.md")
    parser.add_argument("--strict", action="store_true", help="end with code 3 if a target was missed")
    parser.add_argument("--limit", default=1800.0, type=float, help="seconds a job may take (1800)")
    parser.add_argument("--inject-error", action="store_true", help="spoil results: the check must see it")
    parsed = parser.parse_args(arguments)
    if parsed.repeats < 1:
        parser.error("--repeats must be at least 1")
    return parsed


def _names(peers: Sequence[str], missing: dict[str, str]) -> list[str]:
    return [name for name in (*contenders.OURS, *peers) if name not in missing]


def _run(options: argparse.Namespace, missing: dict[str, str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Every job's summary, and the versions of what ran."""
    names = _names(options.peers, missing)
    arguments = ["--sizes", ",".join(map(str, options.sizes)), "--contenders", ",".join(names)]
    arguments += ["--repeats", str(options.repeats)]
    if options.inject_error:
        arguments.append("--inject-error")
    summaries = []
    versions: dict[str, str] = {}
    for processes in options.np:
        results = jobs.run_ranks(
            _RANK, arguments, processes, transport=options.transport, mpi="mpi" in names, limit=options.limit
        )
        summaries.append(report.summarise(results))
        versions = results[0]["versions"]
    return summaries, versions


def _write(record: dict[str, Any], tables: str, options: argparse.Namespace) -> None:
    text = json.dumps(record, indent=1) + "\n"
    if options.json == "-":
        print(text, end="")
    elif options.json:
        Path(options.json).write_text(text)
    if options.save:
        folder = _HERE / "results"
        folder.mkdir(exist_ok=True)
        kind = "allreduce" if record["transport"] == "shm" else f"allreduce-{record['transport']}"
        path = folder / f"{record['date']}-{kind}-{machine.host_class(record['machine'])}.json"
        path.write_text(text)
        if record["transport"] == "shm":
            _DOCUMENT.write_text(report.replace_results(_DOCUMENT.read_text(), tables))
        print(f"saved {path.relative_to(_HERE.parent)}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    options = _arguments(arguments)
    missing = contenders.missing_peers(options.peers)
    host = machine.describe()  # the load before ours
    try:
        summaries, versions = _run(options, missing)
    except jobs.JobFailed as error:
        print(f"allreduce: {error}", file=sys.stderr)
        return 2
    targets = report.check_targets(summaries) if options.transport == "shm" else []
    record = {
        "benchmark": "allreduce f32 sum, in place, one host",
        "date": datetime.date.today().isoformat(),
        "transport": options.transport,
        "repeats": options.repeats,
        "machine": host,
        "versions": versions,
        "missing": missing,
        "targets": [{"target": t.text, "measured": t.value, "bound": t.bound, "met": t.met} for t in targets],
        "jobs": summaries,
    }
    tables = report.record_text(record, targets)
    if options.json != "-":
        print(tables)
    mistakes = [mistake for job in summaries for mistake in job["mistakes"]]
    for mistake in mistakes[:20]:
        print(f"WRONG RESULT: {mistake}", file=sys.stderr)
    if mistakes:
        print(f"allreduce: {len(mistakes)} wrong results; nothing saved", file=sys.stderr)
        return 1
    _write(record, tables, options)
    return 3 if options.strict and not all(target.met for target in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
