"""Many ranks on this host: how long a job takes to start and end, the memory of a rank, and small all-reduces.

    python benchmarks/many_ranks.py                     # 64 ranks: less than a minute
    python benchmarks/many_ranks.py --np 16             # fewer
    python benchmarks/many_ranks.py --save              # keep the record, and renew docs/benchmarks.md

The memory is what a rank has after its first small all-reduces beyond what it had before it imported slipstream. Then
every rank gets a link to every other one, and all is measured again. Every sum is checked. Ends with code 1 if a sum
was wrong or a job failed, 3 with ``--strict`` if a target was missed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.judgements import Judgement, at_most, judgement_table
from slipstream.bench.page import renew
from slipstream.bench.record import head, keep, origin
from slipstream.bench.samples import slowest, spread_cells
from slipstream.bench.shell import SLIPSTREAM, last_object
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_RANK = _HERE / "many_ranks_rank.py"
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_NAME = "many-ranks"
_ONLY_START = "import slipstream; slipstream.init(); slipstream.shutdown()"
_MIB = 1 << 20
_BYTES = 4096
_CALLS = 30  # in a repeat
_STARTS = 3
_LINKS = {"few": "the links that it needs", "all": "links between all ranks"}
# What is wanted of 64 ranks.
_RANKS = 64
_MOST_MIB = 8.0  # of a rank that has made no large call
_MOST_MS = 5.0  # of an all-reduce, on 2 cores


def measure(ranks: int, *, starts: int = _STARTS, calls: int = _CALLS, repeats: int) -> dict[str, Any]:
    """Seconds of each job that only starts and ends; and what many_ranks_rank.py finds."""
    run = [*SLIPSTREAM, "run", "-np", str(ranks), "--no-prefix", "--", sys.executable]
    seconds = []
    for _ in range(starts):
        begin = time.perf_counter()
        subprocess.run([*run, "-c", _ONLY_START], check=True)
        seconds.append(time.perf_counter() - begin)
    found = last_object([*run, str(_RANK), str(_BYTES), str(calls), str(repeats)])
    return {"ranks": ranks, "start": seconds, "found": found}


def judge(record: Mapping[str, Any]) -> list[Judgement]:
    """How the record compares with what is wanted; empty for another number of ranks."""
    if record["ranks"] != _RANKS:
        return []
    few = record["found"]["few"]
    memory = statistics.median(few["bytes"]) / _MIB
    milliseconds = statistics.median(slowest(few["seconds"])) * 1e3
    what = f"{_RANKS} processes"
    return [
        at_most(f"{what}: memory of a rank before its first large call", memory, _MOST_MIB, " MiB"),
        at_most(f"{what}, 4 KiB: all_reduce on 2 cores", milliseconds, _MOST_MS, " ms"),
    ]


def page(record: Mapping[str, Any]) -> str:
    """What docs/benchmarks.md says of a record."""
    rows = [("a job that only starts and ends", *spread_cells(record["start"], "s"))]
    for links, words in _LINKS.items():
        found = record["found"][links]
        times = [1e3 * one for one in slowest(found["seconds"])]
        sizes = [one / _MIB for one in found["bytes"]]
        rows.append((f"all_reduce of 4 KiB, {words}", *spread_cells(times, "ms", ".2f")))
        rows.append((f"memory of a rank, {words}", *spread_cells(sizes, "MiB")))
    table = grid((f"{record['ranks']} processes on one host", "median", "spread", "samples"), rows)
    judged = judge(record)
    return "\n\n".join([f"{origin(record)}.", table, *([judgement_table(judged)] if judged else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-np", "--np", default=_RANKS, type=int, help=f"number of ranks ({_RANKS})")
    parser.add_argument("--repeats", default=9, type=int, help="batches of all-reduces (9)")
    parser.add_argument("--save", action="store_true", help="keep the record, renew docs/benchmarks.md")
    parser.add_argument("--strict", action="store_true", help="end with code 3 if a target was missed")
    given = parser.parse_args(arguments)
    record = head(_NAME)
    try:
        record |= measure(given.np, repeats=given.repeats)
    except subprocess.CalledProcessError as error:
        print(f"many_ranks: a job failed with code {error.returncode}", file=sys.stderr)
        return 1
    print(page(record))
    if given.save:
        keep(record, _NAME, _HERE / "results")
        renew(_DOCUMENT, _NAME, page(record))
    return 3 if given.strict and not all(one.met for one in judge(record)) else 0


if __name__ == "__main__":
    sys.exit(main())
