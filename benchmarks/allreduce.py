"""All-reduce (f32, sum, in place) between processes of this host: slipstream, gloo and Open MPI in one run.

    python benchmarks/allreduce.py                      # 2 and 4 processes, all sizes: a few minutes
    python benchmarks/allreduce.py --np 2 --sizes 64M --repeats 5
    python benchmarks/allreduce.py --json - > result.json
    python benchmarks/allreduce.py --save               # keep it: benchmarks/results/, docs/benchmarks.md

This is ``slipstream bench all_reduce`` with a choice of sizes and peers, and the targets of targets.py. Ends with
code 1 if a result was wrong, 2 if a job failed, and with ``--strict`` 3 if a target was missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import targets

from slipstream.bench.collective.catalogue import parse_sizes
from slipstream.bench.collective.command import Options, measure, save, wrong_results
from slipstream.bench.collective.report import report
from slipstream.bench.jobs import JobFailed, Placement
from slipstream.bench.judgements import judgement_table
from slipstream.bench.page import render, renew
from slipstream.bench.record import write
from slipstream.bench.view import showing

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_MARK = "allreduce"
_AGAINST = "slipstream-shared,slipstream-torch,gloo,mpi"


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All-reduce on one host: slipstream, gloo, Open MPI.")
    parser.add_argument("-np", "--np", default="2,4", help="numbers of processes (2,4)")
    parser.add_argument("--sizes", default="4,4K,64K,1M,16M,64M")
    parser.add_argument("--repeats", default=15, type=int, help="batches per size and contender (15)")
    parser.add_argument("--against", default=_AGAINST, help=f"peers ({_AGAINST})")
    parser.add_argument("--transport", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--json", metavar="FILE", help="write all samples there; - for standard output")
    parser.add_argument("--save", action="store_true", help="keep them, and renew docs/benchmarks.md")
    parser.add_argument("--strict", action="store_true", help="end with code 3 if a target was missed")
    parser.add_argument("--limit", default=1800.0, type=float, help="seconds a job may take (1800)")
    parser.add_argument("--inject-error", action="store_true", help="spoil results: the check must see it")
    return parser.parse_args(arguments)


def _options(given: argparse.Namespace, ranks: int) -> Options:
    return Options(
        collective="all_reduce",
        placement=Placement(ranks),
        sizes=parse_sizes(given.sizes),
        against=[name for name in given.against.split(",") if name],
        repeats=given.repeats,
        transport=given.transport,
        limit=given.limit,
        idle_seconds=2.0,
        inject_error=given.inject_error,
    )


def _keep(records: list[dict[str, Any]], given: argparse.Namespace) -> None:
    if given.json:
        write(records, given.json)
    if given.save:
        for record in records:
            print(f"saved {save(record, _RESULTS).relative_to(_HERE.parent)}", file=sys.stderr)
        if given.transport == "shm":
            renew(_DOCUMENT, _MARK, page(records))


def page(records: list[dict[str, Any]]) -> str:
    """What docs/benchmarks.md says of records over shared memory."""
    return f"{render(records)}\n\n{judgement_table(targets.judge(records))}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    given = _arguments(arguments)
    out = sys.stderr if given.json == "-" else sys.stdout
    records = []
    try:
        for ranks in map(int, given.np.split(",")):
            with showing(out) as show:
                records.append(measure(_options(given, ranks), lambda found, show=show: show(report(found))))
    except (JobFailed, ValueError) as error:
        print(f"allreduce: {error}", file=sys.stderr)
        return 2
    wrong = [text for record in records for text in wrong_results(record)]
    for text in wrong:
        print(f"WRONG RESULT: {text}", file=sys.stderr)
    if wrong:
        print("allreduce: wrong results; nothing saved", file=sys.stderr)
        return 1
    judgements = targets.judge(records) if given.transport == "shm" else []
    if judgements:
        print(judgement_table(judgements), file=out)
    _keep(records, given)
    return 3 if given.strict and not all(judgement.met for judgement in judgements) else 0


if __name__ == "__main__":
    sys.exit(main())
