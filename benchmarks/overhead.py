"""What Python costs per all-reduce call and per bucket of DDP, in microseconds, layer by layer.

    python benchmarks/overhead.py [--np 1,2] [--json FILE|-]

Every layer runs the same operation: 4 bytes of f32, summed in place. ``native`` calls the engine with
arguments prepared before; what a layer takes beyond it is its overhead. With 1 rank nothing is sent, so that is
the clearer of the two; with 2 ranks a call is also as long as the other rank needs. The layers take turns;
medians of the slowest rank. ``c10d`` is `torch.distributed`; gloo does the same for comparison.

A bucket costs what the backward pass of a model takes longer under DDP than without, divided by the number of
buckets: DDP's own work and ours.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import slipstream
from slipstream.bench import jobs, machine
from slipstream.bench.gathering import gather_objects
from slipstream.bench.record import head, write
from slipstream.bench.samples import slowest
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_CALLS = 500
_BUDGET_US = 25.0
_BUDGETED = ("torch allreduce_", "c10d all_reduce")
_BUCKETS = 16
_WIDTH = 32  # of a bucket's square weight: little to compute, little to send
_BACKWARDS = 30
_BUCKET_BUDGET_US = 30.0


def _layers() -> dict[str, Callable[[], object]]:
    """The ways to run the operation, from the engine up. Every call doubles a zero, which stays zero."""
    from slipstream import _core
    from slipstream.base.dtypes import DType, Op
    from slipstream.comm.collectives import addresses

    group = slipstream.world()
    array = np.zeros(1, dtype=np.float32)
    address, dtype, op = array.ctypes.data, int(DType.F32), int(Op.SUM)
    plan = group.compiled("all_reduce", array.nbytes)
    run = group.session.run
    request = _core.Request(
        group=group.native,
        plan=plan.native,
        operation=plan.operation,
        dtype=dtype,
        op=op,
        chunk_bytes=plan.chunk_bytes,
    )
    layers: dict[str, Callable[[], object]] = {
        "native": lambda: run(request, address, address, 1),
        "addresses": lambda: addresses.all_reduce(
            group, address, address, 1, dtype, op, keep=array, sync=True
        ),
        "addresses async": lambda: addresses.all_reduce(
            group, address, address, 1, dtype, op, keep=array
        ).wait(),
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
        "torch allreduce_": lambda: face.allreduce_(tensor, op=face.Sum),
        "torch allreduce": lambda: face.allreduce(tensor, op=face.Sum),
        "torch async": lambda: face.synchronize(face.allreduce_async_(tensor, op=face.Sum)),
        "torch async, named": lambda: face.synchronize(face.allreduce_async_(tensor, name="g", op=face.Sum)),
    }
    return layers


def _c10d_layers(groups: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """The same operation through torch.distributed, on its groups by backend."""
    if not groups:
        return {}
    import torch
    import torch.distributed as dist

    tensor, ours, gloo = torch.zeros(1), groups["slipstream"], groups["gloo"]
    return {
        "c10d all_reduce": lambda: dist.all_reduce(tensor, group=ours),
        "c10d async": lambda: dist.all_reduce(tensor, group=ours, async_op=True).wait(),
        "c10d all_reduce, gloo": lambda: dist.all_reduce(tensor, group=gloo),
    }


def _backwards(groups: dict[str, Any]) -> dict[str, Callable[[], float]]:
    """Forward and backward passes of one model in _BUCKETS buckets, plain and under DDP; seconds of the backward."""
    if not groups:
        return {}
    import torch
    from torch.nn.parallel import DistributedDataParallel

    x = torch.ones(1, _WIDTH)

    def passes(group: Any) -> Callable[[], float]:
        layers = (torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_BUCKETS))
        model: Any = torch.nn.Sequential(*layers)
        if group is not None:
            # Smaller than any weight: each has a bucket of its own.
            model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=1e-3)

        def run() -> float:
            loss = model(x).sum()
            start = time.perf_counter()
            loss.backward()
            return time.perf_counter() - start

        return run

    return {"plain": passes(None)} | {name: passes(group) for name, group in groups.items()}


def _groups() -> dict[str, Any]:
    """Groups of torch.distributed over all ranks, by backend; none without PyTorch."""
    try:
        dist: Any = importlib.import_module("torch.distributed")
    except ImportError:
        return {}
    dist.init_process_group("slipstream")
    return {"slipstream": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def _measure(groups: dict[str, Any], repeats: int) -> dict[str, dict[str, list[float]]]:
    """Seconds per call of every layer, and per backward pass of every model, in every repeat."""
    layers, passes = _layers() | _c10d_layers(groups), _backwards(groups)
    calls: dict[str, list[float]] = {name: [] for name in layers}
    backwards: dict[str, list[float]] = {name: [] for name in passes}
    for repeat in range(-1, repeats):
        for name, call in layers.items():
            slipstream.barrier()
            start = time.perf_counter()
            for _ in range(_CALLS):
                call()
            if repeat >= 0:
                calls[name].append((time.perf_counter() - start) / _CALLS)
        for name, backward in passes.items():
            slipstream.barrier()
            seconds = sum(backward() for _ in range(_BACKWARDS))
            if repeat >= 0:
                backwards[name].append(seconds / _BACKWARDS)
    return {"calls": calls, "backwards": backwards}


def _rank(repeats: int) -> None:
    report = jobs.channel(int(os.environ["RANK"]))
    gc.disable()
    slipstream.init()
    groups = _groups()
    versions = machine.versions("slipstream", "numpy", "torch")
    report({"ranks": gather_objects({"seconds": _measure(groups, repeats), "versions": versions})})
    if groups:
        importlib.import_module("torch.distributed").destroy_process_group()
    slipstream.shutdown()


def _medians(results: Sequence[dict[str, Any]], kind: str) -> dict[str, float]:
    """Microseconds of each of a kind: the median of what the slowest rank took."""
    medians = {}
    for name in results[0]["seconds"][kind]:
        samples = slowest([result["seconds"][kind][name] for result in results])
        medians[name] = statistics.median(samples) * 1e6
    return medians


def _summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Microseconds per call of each layer, and per bucket beyond the plain backward pass."""
    backwards = _medians(results, "backwards")
    plain = backwards.pop("plain", 0.0)
    return {
        "processes": len(results),
        "us_per_call": _medians(results, "calls"),
        "us_per_bucket": {name: (us - plain) / _BUCKETS for name, us in backwards.items()},
    }


def main() -> int:
    """Runs the benchmark; returns the exit code: 2 if a job failed."""
    parser = argparse.ArgumentParser(description="Python overhead per all-reduce call.")
    parser.add_argument("-np", "--np", default="1,2", help="numbers of processes (1,2)")
    parser.add_argument("--repeats", default=15, type=int, help="batches per layer (15)")
    parser.add_argument("--json", metavar="FILE", help="write the result there; - for standard output")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # be one
    options = parser.parse_args()
    if options.rank:
        _rank(options.repeats)
        return 0
    record: dict[str, Any] = head("Python overhead") | {"jobs": []}
    arguments = ["--rank", "--repeats", str(options.repeats)]
    environment = {"PYTHONPATH": str(_HERE), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for ranks in map(int, options.np.split(",")):
        try:
            (message,) = jobs.run(
                "overhead", arguments, jobs.Placement(ranks), mpi=False, limit=300, environment=environment
            )
        except jobs.JobFailed as error:
            print(f"overhead: {error}", file=sys.stderr)
            return 2
        results = message["ranks"]
        record["versions"] = results[0]["versions"]
        record["jobs"].append(_summary(results))
    if options.json != "-":
        _print(record)
    if options.json:
        write(record, options.json)
    return 0


def _judgement(us: float, budget_us: float) -> str:
    return f"<= {budget_us:g} us: " + ("met" if us <= budget_us else "NOT MET")


def _print(record: dict[str, Any]) -> None:
    for job in record["jobs"]:
        alone = job["processes"] == 1  # only then is all of it overhead
        base = job["us_per_call"]["native"]
        rows = []
        for name, us in job["us_per_call"].items():
            judgement = _judgement(us - base, _BUDGET_US) if alone and name in _BUDGETED else ""
            rows.append((name, f"{us:.2f}", f"{us - base:.2f}", judgement))
        print(f"\n{job['processes']} processes, microseconds per call\n")
        print(grid(("layer", "call", "overhead", "budget"), rows))
        rows = []
        for name, us in job["us_per_bucket"].items():
            judgement = _judgement(us, _BUCKET_BUDGET_US) if alone and name == "slipstream" else ""
            rows.append((name, f"{us:.2f}", judgement))
        if rows:
            print(f"\n{job['processes']} processes, DDP, microseconds per bucket beyond plain backward\n")
            print(grid(("backend", "bucket", "budget"), rows))


if __name__ == "__main__":
    sys.exit(main())
