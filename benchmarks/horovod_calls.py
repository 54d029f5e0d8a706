"""`hvd.allreduce` and `hvd.allreduce_` by size, beside what Horovod itself took.

    python benchmarks/horovod_calls.py                  # 2 and 4 processes: about a minute
    python benchmarks/horovod_calls.py --save           # keep the record, and renew docs/benchmarks.md

Calls have no name, and repeat: their order is locked. Sums of float32; every result is checked. The two ways take
turns; medians of the slowest rank. Horovod's times are not of the same run: they were measured once, on a quiet machine
of the same kind. Ends with code 1 if a sum was wrong, 2 if a job failed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import slipstream
from slipstream.bench import jobs, machine
from slipstream.bench.gathering import gather_objects
from slipstream.bench.judgements import Judgement, judgement_table
from slipstream.bench.page import renew
from slipstream.bench.record import head, keep, origin
from slipstream.bench.samples import slowest
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_NAME = "horovod-calls"
_KIB, _MIB = 1 << 10, 1 << 20
# Bytes -> how often in a batch.
_CALLS = {4: 200, 4 * _KIB: 200, 64 * _KIB: 100, _MIB: 20, 16 * _MIB: 2, 64 * _MIB: 1}
_LOCKS = 60  # calls in which any order has been locked
# Horovod's medians of an all-reduce in milliseconds, by processes and bytes (git head of June 2026 with Gloo, float32,
# one host of this kind, quiet). It is not known whether they are of allreduce or of allreduce_.
_HOROVOD = {
    2: {4 * _KIB: 2.0, 64 * _KIB: 1.2, _MIB: 3.4, 16 * _MIB: 22, 64 * _MIB: 184},
    4: {4 * _KIB: 11, 64 * _KIB: 19, _MIB: 20, 16 * _MIB: 95, 64 * _MIB: 480},
}
_WANTED = 5.0  # times faster, at 4 KiB and 64 MiB
_WAYS = ("allreduce", "allreduce_")


def _times(call: Callable[[], Any], reset: Callable[[], None], calls: int) -> tuple[float, Any]:
    """Seconds of one call, and what the last one returned."""
    reset()
    slipstream.barrier()
    seconds, result = 0.0, None
    for _ in range(calls):
        reset()
        begin = time.perf_counter()
        result = call()
        seconds += time.perf_counter() - begin
    return seconds / calls, result


def _rank(repeats: int) -> None:
    torch: Any = importlib.import_module("torch")
    hvd: Any = importlib.import_module("slipstream.torch")
    report = jobs.channel(int(os.environ["RANK"]))
    hvd.init()
    total = hvd.size() * (hvd.size() + 1) / 2
    found: dict[str, dict[str, list[float]]] = {way: {} for way in _WAYS}
    wrong = 0
    for nbytes, calls in _CALLS.items():
        data = torch.empty(nbytes // 4)
        data.fill_(hvd.rank() + 1)
        ways = {
            "allreduce": (lambda data=data: hvd.allreduce(data, op=hvd.Sum), lambda: None),
            "allreduce_": (
                lambda data=data: hvd.allreduce_(data, op=hvd.Sum),
                lambda data=data: data.fill_(hvd.rank() + 1),
            ),
        }
        for call, reset in ways.values():
            for _ in range(_LOCKS if nbytes < _MIB else 4):
                reset()
                call()
        ways["allreduce_"][1]()
        for _ in range(repeats):
            for way, (call, reset) in ways.items():
                seconds, result = _times(call, reset, calls)
                found[way].setdefault(str(nbytes), []).append(seconds)
                wrong += int((result != total).sum())
                data.fill_(hvd.rank() + 1)
    versions = machine.versions("slipstream", "numpy", "torch")
    report({"ranks": gather_objects({"seconds": found, "wrong": wrong, "versions": versions})})
    hvd.shutdown()


def judge(record: Mapping[str, Any]) -> list[Judgement]:
    """How the record compares with what is wanted."""
    found = []
    for job in record["jobs"]:
        n = job["processes"]
        for nbytes, way in ((4 * _KIB, "allreduce"), (64 * _MIB, "allreduce"), (64 * _MIB, "allreduce_")):
            ratio = _HOROVOD[n][nbytes] / job["ms"][way][str(nbytes)]
            what = f"{way}, {_size(nbytes)}, {n} processes: Horovod's time / ours"
            found.append(Judgement(what, f">= {_WANTED:g}x", f"{ratio:.1f}x", ratio >= _WANTED))
    return found


def _size(nbytes: int) -> str:
    for unit, name in ((_MIB, "MiB"), (_KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def _ms(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"


def page(record: Mapping[str, Any]) -> str:
    """What docs/benchmarks.md says of a record."""
    rows = []
    for job in record["jobs"]:
        theirs = _HOROVOD[job["processes"]]
        for nbytes in _CALLS:
            ours = [job["ms"][way][str(nbytes)] for way in _WAYS]
            other = theirs.get(nbytes)
            ratios = ["" if other is None else f"{other / one:.1f}x" for one in ours]
            times = [_ms(one) for one in ours]
            shown = "" if other is None else f"{other:g}"
            rows.append((str(job["processes"]), _size(nbytes), *times, shown, *ratios))
    columns = (
        "processes",
        "size",
        *(f"{way}, ms" for way in _WAYS),
        "Horovod, ms",
        *(f"vs {way}" for way in _WAYS),
    )
    about = (
        f"{origin(record)}. Horovod's times were measured once, with Gloo, on another quiet machine of this kind: they "
        "are not of this run."
    )
    return "\n\n".join([about, grid(columns, rows), judgement_table(judge(record))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", default=15, type=int, help="batches of each way and size (15)")
    parser.add_argument("--save", action="store_true", help="keep the record, renew docs/benchmarks.md")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # be one
    options = parser.parse_args(arguments)
    if options.rank:
        _rank(options.repeats)
        return 0
    record: dict[str, Any] = head(_NAME) | {"jobs": []}
    environment = {"PYTHONPATH": str(_HERE), "OMP_NUM_THREADS": "1"}
    for ranks in _HOROVOD:
        arguments = ["--rank", "--repeats", str(options.repeats)]
        placement = jobs.Placement(ranks)
        try:
            (message,) = jobs.run(
                "horovod_calls", arguments, placement, mpi=False, limit=600, environment=environment
            )
        except jobs.JobFailed as error:
            print(f"horovod_calls: {error}", file=sys.stderr)
            return 2
        found = message["ranks"]
        if any(one["wrong"] for one in found):
            print(f"WRONG RESULT with {ranks} processes; nothing is kept", file=sys.stderr)
            return 1
        record["versions"] = found[0]["versions"]
        record["jobs"].append(
            {
                "processes": ranks,
                "ms": {
                    way: {
                        nbytes: round(
                            statistics.median(slowest([one["seconds"][way][nbytes] for one in found])) * 1e3,
                            4,
                        )
                        for nbytes in found[0]["seconds"][way]
                    }
                    for way in _WAYS
                },
            }
        )
    print(page(record))
    if options.save:
        keep(record, _NAME, _HERE / "results")
        renew(_DOCUMENT, _NAME, page(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
