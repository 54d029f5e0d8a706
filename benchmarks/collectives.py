"""All ten collectives between processes of this host (float32, private memory): slipstream, gloo, Open MPI in one run.

    python benchmarks/collectives.py                            # 2, 4 and 8 processes: a quarter of an hour
    python benchmarks/collectives.py --np 4 --collectives gather,scatter --sizes 1M
    python benchmarks/collectives.py --json result.json         # every sample
    python benchmarks/collectives.py --save                     # keep it: benchmarks/results/, docs/benchmarks.md
    python benchmarks/collectives.py -np 4 --save               # put these into today's record

This is ``slipstream bench`` for one collective after another, and a table of them. Ends with code 1 if a result was
wrong, 2 if a job failed, and with ``--strict`` 3 if a target was missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.collective.catalogue import COLLECTIVES, parse_sizes
from slipstream.bench.collective.command import Options, measure, wrong_results
from slipstream.bench.collective.report import report
from slipstream.bench.jobs import JobFailed, Placement
from slipstream.bench.judgements import Judgement, at_least, judgement_table
from slipstream.bench.page import renew, replace_between
from slipstream.bench.record import Record, head, keep, origin, path_of, write
from slipstream.bench.table import grid, size_text, time_text
from slipstream.bench.view import showing

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_PEERS = {"gloo": "gloo", "mpi": "Open MPI"}
_LARGE = 64 << 20
# At 64 MiB: by processes, how many times as fast as each peer every collective is meant to be.
_WANTED = {2: {"mpi": 1.3, "gloo": 3.0}, 4: {"mpi": 1.2, "gloo": 2.5}}
# How many times Open MPI's time the smallest may take: by processes, on 2 cores.
_SMALL = {2: 2.0, 4: 3.0}
_QUICK = ("all_reduce", "broadcast", "barrier", "all_gather", "reduce_scatter")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All collectives on one host: slipstream, gloo, Open MPI.")
    parser.add_argument("-np", "--np", default="2,4,8", help="numbers of processes (2,4,8)")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES), help="which of them (all)")
    parser.add_argument("--sizes", default="4,4K,64K,1M,16M,64M")
    parser.add_argument("--repeats", default=9, type=int, help="batches per size and contender (9)")
    parser.add_argument("--against", default=",".join(_PEERS), help=f"peers ({','.join(_PEERS)})")
    parser.add_argument("--json", metavar="FILE", help="write all samples there; - for standard output")
    parser.add_argument("--save", action="store_true", help="keep the medians, and renew docs/benchmarks.md")
    parser.add_argument("--strict", action="store_true", help="end with code 3 if a target was missed")
    parser.add_argument("--limit", default=1800.0, type=float, help="seconds a job may take (1800)")
    return parser.parse_args(arguments)


def summary(records: Sequence[Mapping[str, Any]]) -> Record:
    """What `--save` keeps of records of `slipstream bench`: a row of medians and ratios for each size of each."""
    first = records[0]
    rows = [
        {
            "collective": record["collective"],
            "ranks": record["ranks"],
            "bytes": size["bytes"],
            "median": size["contenders"]["slipstream"]["median"],
            "ratio": size["contenders"]["slipstream"].get("ratio", {}),
        }
        for record in records
        for size in record["sizes"]
    ]
    return {
        **head("collectives"),
        "date": first["date"],
        "machine": first["machine"],
        "versions": first["versions"],
        "repeats": min(record["repeats"] for record in records),
        "rows": rows,
    }


def joined(old: Record, new: Record, same: Sequence[str] = ("date", "versions")) -> Record:
    """The record ``old`` with the rows of ``new`` in place of those of the same collectives and numbers of ranks.

    ValueError if they differ in one of ``same`` or in the machine, as one page speaks of one of each.
    """
    for what in same:
        if old[what] != new[what]:
            raise ValueError(f"there is a record of another {what}: {old[what]}, not {new[what]}")
    ours, theirs = ({**one["machine"], "load_1min": None} for one in (old, new))
    if ours != theirs:
        raise ValueError(f"there is a record of another machine: {ours}, not {theirs}")
    again = {(row["collective"], row["ranks"]) for row in new["rows"]}
    rows = [row for row in old["rows"] if (row["collective"], row["ranks"]) not in again] + new["rows"]
    repeats = min(old["repeats"], new["repeats"])
    return {**old, "repeats": repeats, "rows": sorted(rows, key=_place)}


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    """Where its collective stands in the table; rows of one collective keep their order."""
    return row["ranks"], list(COLLECTIVES).index(row["collective"])


def page(record: Mapping[str, Any]) -> str:
    """What docs/benchmarks.md says of a summary: a table for each number of processes, and the targets."""
    parts = [origin(record) + f"; medians of {record['repeats']} batches or more."]
    for ranks in sorted({row["ranks"] for row in record["rows"]}):
        rows = [row for row in record["rows"] if row["ranks"] == ranks]
        parts.append(f"{ranks} processes:\n\n{table(rows)}")
    parts.append(judgement_table(judge(record)))
    return "\n\n".join(parts)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each collective, a column for each size: our time, and those of the peers in multiples of it."""
    sizes = sorted({_column(row["bytes"]) for row in rows})
    cells: dict[str, dict[int, str]] = {}
    for row in rows:
        ratios = [f"{row['ratio'][peer]['value']:.2f}" for peer in _PEERS if peer in row["ratio"]]
        text = time_text(row["median"]) + (f" ({', '.join(ratios)})" if ratios else "")
        cells.setdefault(row["collective"], {})[_column(row["bytes"])] = text
    lines = [[name, *(found.get(size, "") for size in sizes)] for name, found in cells.items()]
    return grid(["", *map(size_text, sizes)], lines)


def _column(nbytes: int) -> int:
    """The power of two that a size is shown under: a part for each rank makes small sizes differ; a barrier has 0."""
    return 4 if nbytes <= 32 else 1 << (nbytes.bit_length() - 1)


def judge(record: Mapping[str, Any]) -> list[Judgement]:
    """The targets that the rows of a summary allow to be judged."""
    judgements = []
    for ranks, wanted in _WANTED.items():
        for peer, factor in wanted.items():
            found = _ratios(record, ranks, peer, _LARGE)
            if found:
                missed = [f"{name} {value:.2f}x" for value, name in sorted(found) if value < factor]
                text = f"{ranks} processes, {size_text(_LARGE)}: every collective, speed relative to {_PEERS[peer]}"
                measured = f"all but {', '.join(missed)}" if missed else f"{min(found)[0]:.2f}x and more"
                judgements.append(Judgement(text, f">= {factor:g}x", measured, not missed))
    for ranks, times in _SMALL.items():
        for nbytes in (4, 4 << 10):
            for value, name in _ratios(record, ranks, "mpi", nbytes):
                if name in _QUICK:
                    text = f"{ranks} processes, {name} of {size_text(nbytes)}, speed relative to Open MPI"
                    judgements.append(at_least(text, value, 1 / times, form=".2f"))
    return judgements + slower_than_gloo(record)


def slower_than_gloo(record: Mapping[str, Any]) -> list[Judgement]:
    """One judgement of all rows, none if gloo was not there. What is slower by half a percent is as fast."""
    beside = [row for row in record["rows"] if "gloo" in row["ratio"]]
    if not beside:
        return []
    slower = [row for row in beside if round(row["ratio"]["gloo"]["value"], 2) < 1]
    names = [f"{one['collective']} of {size_text(one['bytes'])}, {one['ranks']} processes" for one in slower]
    text = "sizes at which a collective is slower than gloo"
    return [Judgement(text, "none", "; ".join(names) or "none", not slower)]


def _ratios(record: Mapping[str, Any], ranks: int, peer: str, nbytes: int) -> list[tuple[float, str]]:
    return [
        (row["ratio"][peer]["value"], row["collective"])
        for row in record["rows"]
        if row["ranks"] == ranks and _column(row["bytes"]) == nbytes and peer in row["ratio"] and row["bytes"]
    ]


def _measure(given: argparse.Namespace, out: Any) -> list[Record]:
    records = []
    for ranks in map(int, given.np.split(",")):
        for collective in given.collectives.split(","):
            options = Options(
                collective=collective,
                placement=Placement(ranks),
                sizes=parse_sizes(given.sizes),
                against=[name for name in given.against.split(",") if name],
                repeats=given.repeats,
                transport="shm",
                limit=given.limit,
            )
            with showing(out) as show:
                records.append(measure(options, lambda found, show=show: show(report(found))))
    return records


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    given = _arguments(arguments)
    out = sys.stderr if given.json == "-" else sys.stdout
    unknown = set(given.collectives.split(",")) - set(COLLECTIVES)
    if unknown:
        print(f"collectives: --collectives: there is no {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    try:
        if given.save:
            # Whether there is a place for it, before it is measured.
            replace_between(_DOCUMENT.read_text(encoding="utf-8"), "collectives", "")
        records = _measure(given, out)
    except (JobFailed, ValueError) as error:
        print(f"collectives: {error}", file=sys.stderr)
        return 2
    wrong = [f"{record['collective']}: {text}" for record in records for text in wrong_results(record)]
    for text in wrong:
        print(f"WRONG RESULT: {text}", file=sys.stderr)
    if wrong:
        print("collectives: wrong results; nothing saved", file=sys.stderr)
        return 1
    record = summary(records)
    print(page(record), file=out)
    if given.json:
        write(records, given.json)
    if given.save:
        path = path_of(record, "collectives", _RESULTS)
        try:
            if path.exists():  # other collectives or numbers of ranks of this day
                record = joined(json.loads(path.read_text(encoding="utf-8")), record)
        except ValueError as error:
            print(f"collectives: nothing saved: {error}", file=sys.stderr)
            return 2
        print(f"saved {keep(record, 'collectives', _RESULTS).relative_to(_HERE.parent)}", file=sys.stderr)
        renew(_DOCUMENT, "collectives", page(record))
    return 3 if given.strict and not all(judgement.met for judgement in judge(record)) else 0


if __name__ == "__main__":
    sys.exit(main())
