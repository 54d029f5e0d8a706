"""What Python costs per all-reduce call, in microseconds, layer by layer.

    python benchmarks/overhead.py [--np 1,2] [--json FILE|-]

Every layer runs the same operation: 4 bytes of f32, summed in place. ``native`` calls the engine with
arguments prepared before; what a layer takes beyond it is its overhead. With 1 rank nothing is sent, so that is
the clearer of the two; with 2 ranks a call is also as long as the other rank needs. The layers take turns;
medians of the slowest rank.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jobs
import machine
import numpy as np
from report import table

import slipstream

_CALLS = 500
_BUDGET_US = 25.0
_BUDGETED = "torch allreduce_"


def _layers() -> dict[str, Callable[[], object]]:
    """The ways to run the operation, from the engine up. Every call doubles a zero, which stays zero."""
    from slipstream.base.dtypes import DType, Op
    from slipstream.comm import raw

    group = slipstream.world()
    array = np.zeros(1, dtype=np.float32)
    address, dtype, op = array.ctypes.data, int(DType.F32), int(Op.SUM)
    plan = group.compiled("all_reduce", array.nbytes)
    run, native, inner, name = group.session.run, group.native, plan.native, plan.operation
    chunk = plan.chunk_bytes
    rest = (-1, "", 1.0, 1.0, 1, None, None, 1)
    layers: dict[str, Callable[[], object]] = {
        "native": lambda: run(native, inner, name, dtype, op, address, address, 1, chunk, *rest),
        "raw": lambda: raw.all_reduce(group, address, address, 1, dtype, op, sync=True),
        "raw async": lambda: raw.all_reduce(group, address, address, 1, dtype, op).wait(),
        "comm": lambda: slipstream.all_reduce(array, out=array),
        "comm, new result": lambda: slipstream.all_reduce(array),
    }
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return layers
    face: Any = importlib.import_module("slipstream.torch")
    face.init()
    tensor = torch.zeros(1)
    layers |= {
        _BUDGETED: lambda: face.allreduce_(tensor, op=face.Sum),
        "torch allreduce": lambda: face.allreduce(tensor, op=face.Sum),
        "torch async": lambda: face.synchronize(face.allreduce_async_(tensor, op=face.Sum)),
        "torch async, named": lambda: face.synchronize(face.allreduce_async_(tensor, name="g", op=face.Sum)),
    }
    return layers


def _measure(repeats: int) -> dict[str, list[float]]:
    layers = _layers()
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    for repeat in range(-1, repeats):
        for name, call in layers.items():
            slipstream.barrier()
            start = time.perf_counter()
            for _ in range(_CALLS):
                call()
            if repeat >= 0:
                seconds[name].append((time.perf_counter() - start) / _CALLS)
    return seconds


def _rank(folder: str, repeats: int) -> None:
    gc.disable()
    slipstream.init()
    versions = machine.versions("slipstream", "numpy", "torch")
    jobs.deliver(folder, slipstream.rank(), {"seconds": _measure(repeats), "versions": versions})
    slipstream.barrier()
    slipstream.shutdown()


def _summary(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Microseconds per call of each layer."""
    medians = {}
    for name in results[0]["seconds"]:
        samples = zip(*(result["seconds"][name] for result in results), strict=True)
        medians[name] = statistics.median(max(sample) for sample in samples) * 1e6
    return medians


def main() -> int:
    """Runs the benchmark; returns the exit code: 2 if a job failed."""
    parser = argparse.ArgumentParser(description="Python overhead per all-reduce call.")
    parser.add_argument("-np", "--np", default="1,2", help="numbers of processes (1,2)")
    parser.add_argument("--repeats", default=15, type=int, help="batches per layer (15)")
    parser.add_argument("--json", metavar="FILE", help="write the result there; - for standard output")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        _rank(options.folder, options.repeats)
        return 0
    record: dict[str, Any] = {"benchmark": "Python overhead", "machine": machine.describe(), "jobs": []}
    arguments = ["--repeats", str(options.repeats)]
    for ranks in map(int, options.np.split(",")):
        try:
            results = jobs.run_ranks(
                Path(__file__).resolve(), arguments, ranks, transport="auto", mpi=False, limit=300
            )
        except jobs.JobFailed as error:
            print(f"overhead: {error}", file=sys.stderr)
            return 2
        record["versions"] = results[0]["versions"]
        record["jobs"].append({"processes": ranks, "us_per_call": _summary(results)})
    if options.json != "-":
        _print(record)
    if options.json:
        text = json.dumps(record, indent=1) + "\n"
        if options.json == "-":
            print(text, end="")
        else:
            Path(options.json).write_text(text)
    return 0


def _print(record: dict[str, Any]) -> None:
    for job in record["jobs"]:
        rows = []
        base = job["us_per_call"]["native"]
        for name, us in job["us_per_call"].items():
            verdict = ""
            if name == _BUDGETED and job["processes"] == 1:
                verdict = f"<= {_BUDGET_US:g} us: " + ("met" if us - base <= _BUDGET_US else "NOT MET")
            rows.append((name, f"{us:.2f}", f"{us - base:.2f}", verdict))
        print(f"\n{job['processes']} processes, microseconds per call\n")
        print(table(("layer", "call", "overhead", "budget"), rows))


if __name__ == "__main__":
    sys.exit(main())
