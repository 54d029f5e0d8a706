"""What a name costs an operation of the Horovod API, in microseconds: with a locked order, and without.

    python benchmarks/names.py [--np 2,4] [--json FILE|-]

``blocking``: one `allreduce_` of 8 floats. ``step``: 100 of `allreduce_async_` of 10 floats, and as many `synchronize`.
``unnamed`` has no name, ``locked`` the same names each time, ``negotiated`` a new name each time, so that all ranks
tell each other. The ways take turns; medians of the slowest rank.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import slipstream
from slipstream.bench import jobs, machine
from slipstream.bench.gathering import gather_objects
from slipstream.bench.record import head, write
from slipstream.bench.samples import slowest
from slipstream.bench.table import grid

_CALLS = {"blocking": 200, "step": 5}
_TENSORS = 100


def _ways() -> dict[str, Callable[[], object]]:
    torch: Any = importlib.import_module("torch")
    hvd: Any = importlib.import_module("slipstream.torch")
    small = torch.zeros(8)
    many = [torch.zeros(10) for _ in range(_TENSORS)]
    numbers = itertools.count()

    def step(names: list[str] | list[None]) -> None:
        handles = [
            hvd.allreduce_async_(one, op=hvd.Sum, name=name) for one, name in zip(many, names, strict=True)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    def new() -> list[str]:
        number = next(numbers)
        return [f"{number}.{i}" for i in range(_TENSORS)]

    return {
        "blocking unnamed": lambda: hvd.allreduce_(small, op=hvd.Sum),
        "blocking locked": lambda: hvd.allreduce_(small, op=hvd.Sum, name="x"),
        "blocking negotiated": lambda: hvd.allreduce_(small, op=hvd.Sum, name=f"x{next(numbers)}"),
        "step unnamed": lambda: step([None] * _TENSORS),
        "step locked": lambda: step([f"{i}" for i in range(_TENSORS)]),
        "step negotiated": lambda: step(new()),
    }


def _rank(repeats: int) -> None:
    report = jobs.channel(int(os.environ["RANK"]))
    slipstream.init()
    seconds: dict[str, list[float]] = {}
    ways = _ways()
    for repeat in range(-1, repeats):
        for name, call in ways.items():
            calls = _CALLS[name.split()[0]]
            if name.endswith("locked"):
                for _ in range(60):  # as many cycles as any order needs
                    call()
            slipstream.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            if repeat >= 0:
                seconds.setdefault(name, []).append((time.perf_counter() - start) / calls)
    versions = machine.versions("slipstream", "numpy", "torch")
    report({"ranks": gather_objects({"seconds": seconds, "versions": versions})})
    slipstream.shutdown()


def main() -> int:
    """Runs the benchmark; returns the exit code: 2 if a job failed."""
    parser = argparse.ArgumentParser(description="What a name costs an operation.")
    parser.add_argument("-np", "--np", default="2,4", help="numbers of processes (2,4)")
    parser.add_argument("--repeats", default=7, type=int, help="batches of each way (7)")
    parser.add_argument("--json", metavar="FILE", help="write the result there; - for standard output")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # be one
    options = parser.parse_args()
    if options.rank:
        _rank(options.repeats)
        return 0
    record: dict[str, Any] = head("names") | {"jobs": []}
    arguments = ["--rank", "--repeats", str(options.repeats)]
    for ranks in map(int, options.np.split(",")):
        try:
            (message,) = jobs.run(
                "names", arguments, jobs.Placement(ranks), mpi=False, limit=300, environment=_ENV
            )
        except jobs.JobFailed as error:
            print(f"names: {error}", file=sys.stderr)
            return 2
        found = message["ranks"]
        record["versions"] = found[0]["versions"]
        medians = {
            name: statistics.median(slowest([one["seconds"][name] for one in found])) * 1e6
            for name in found[0]["seconds"]
        }
        record["jobs"].append({"processes": ranks, "us": medians})
        if options.json != "-":
            rows = [
                (name, f"{us:.1f}", f"{us / medians[name.split()[0] + ' unnamed']:.2f}")
                for name, us in medians.items()
            ]
            print(f"\n{ranks} processes, microseconds\n")
            print(grid(("way", "time", "of unnamed"), rows))
    if options.json:
        write(record, options.json)
    return 0


_ENV = {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__)), "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    sys.exit(main())
