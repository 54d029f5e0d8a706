"""Step time of the text model under DistributedDataParallel between processes of this host: slipstream and gloo.

    python benchmarks/ddp.py                          # 2 and 4 processes, small buckets and one bucket
    python benchmarks/ddp.py --np 2 --bucket-mb 25 --repeats 5
    python benchmarks/ddp.py --json - > result.json
    python benchmarks/ddp.py --save                   # keep it: benchmarks/results/

Both groups are of the same processes and take turns, a few steps at a time; ``plain`` is the same model without DDP,
which sends nothing. The model and its data are those of examples/torch_ddp_text.py. A repeat takes as long as its
slowest rank. Ends with code 1 if the parameters differ at the end, 2 if a job failed, and with ``--strict`` 3 if
slipstream was the slower.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench import jobs, machine
from slipstream.bench.record import head, keep, write
from slipstream.bench.samples import slowest, times
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_EXAMPLES = _HERE.parent / "examples"
_STEPS = 5  # in a turn
_SEQUENCES = 16  # in a step, over all ranks
_TOLERANCE = 1e-3  # of parameters, after all steps: sums are rounded in another order
_PEER = "gloo"


class _Trainer:
    """A text model, with its optimizer and what it has seen."""

    def __init__(self, text_model: Any, wrap: Callable[[Any], Any]) -> None:
        import torch

        torch.manual_seed(0)
        self._loss = text_model.mean_loss
        self.model = text_model.GPT()
        self.wrapped = wrap(self.model)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self._steps = 0

    def step(self, text: Any) -> None:
        """One optimizer step on the next batch."""
        self._optimizer.zero_grad()
        self._loss(self.wrapped, text.batch(self._steps, _SEQUENCES)).backward()
        self._optimizer.step()
        self._steps += 1

    def parameters(self) -> Any:
        """All parameters in one tensor."""
        import torch

        return torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()


def _rank(repeats: int, bucket_mb: float) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    report = jobs.channel(rank)
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(_EXAMPLES))
    text_model = importlib.import_module("text_model")
    gc.disable()
    dist.init_process_group("slipstream")
    groups = {"slipstream": dist.group.WORLD, _PEER: dist.new_group(backend=_PEER)}

    def wrapper(group: Any) -> Callable[[Any], Any]:
        return lambda model: torch.nn.parallel.DistributedDataParallel(
            model, process_group=group, bucket_cap_mb=bucket_mb
        )

    text = text_model.load_text()
    trainers = {name: _Trainer(text_model, wrapper(group)) for name, group in groups.items()}
    trainers["plain"] = _Trainer(text_model, lambda model: model)
    seconds = _measure(trainers, text, repeats)
    ours, theirs = trainers["slipstream"], trainers[_PEER]
    sizes = ours.wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    result = {
        "seconds": seconds,
        "buckets": len(sizes.split(",")),
        "difference": (ours.parameters() - theirs.parameters()).abs().max().item(),
        "versions": machine.versions("slipstream", "torch"),
    }
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, result)
    report({"ranks": everyone})
    dist.destroy_process_group()


def _measure(trainers: dict[str, _Trainer], text: Any, repeats: int) -> dict[str, list[float]]:
    """Seconds per step of every trainer in every repeat."""
    import torch.distributed as dist

    from slipstream.bench.turns import turns

    names = list(trainers)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat, _, name in turns(names, repeats, warmup=2):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(_STEPS):
            trainers[name].step(text)
        if repeat >= 0:
            seconds[name].append((time.perf_counter() - start) / _STEPS)
    return seconds


def _summary(results: Sequence[dict[str, Any]], bucket_mb: float) -> dict[str, Any]:
    """One job from the results of its ranks; ``ratio``: the peer's median time per step to ours."""
    rows = {}
    for name in results[0]["seconds"]:
        rows[name] = times(slowest([result["seconds"][name] for result in results]))
    return {
        "processes": len(results),
        "bucket_mb": bucket_mb,
        "buckets": results[0]["buckets"],
        "differences": [result["difference"] for result in results],
        "ratio": rows[_PEER]["median"] / rows["slipstream"]["median"],
        "contenders": rows,
    }


def _tables(record: dict[str, Any]) -> str:
    rows = []
    for job in record["jobs"]:
        head = (str(job["processes"]), str(job["buckets"]))
        for name, row in job["contenders"].items():
            ratio, judgement = "", ""
            if name == "slipstream":
                ratio = f"{job['ratio']:.2f}x"
                judgement = ">= 1x: " + ("met" if job["ratio"] >= 1 else "NOT MET")
            times = [f"{row[key] * 1e3:.2f} ms" for key in ("median", "min")]
            rows.append((*head, name, *times, ratio, judgement))
            head = ("", "")
    return grid(("processes", "buckets", "contender", "step, median", "min", f"vs {_PEER}", "target"), rows)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Step time under DDP on one host: slipstream and gloo.")
    parser.add_argument("-np", "--np", default="2,4", help="numbers of processes (2,4)")
    parser.add_argument("--bucket-mb", default="0.05,25", help="DDP's bucket_cap_mb (0.05,25)")
    parser.add_argument("--repeats", default=25, type=int, help="turns of each, of 5 steps (25)")
    parser.add_argument("--json", metavar="FILE", help="write all samples there; - for standard output")
    parser.add_argument("--save", action="store_true", help="keep them in benchmarks/results/")
    parser.add_argument("--strict", action="store_true", help="end with code 3 if slipstream was slower")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # be one
    parsed = parser.parse_args(arguments)
    if parsed.repeats < 1:
        parser.error("--repeats must be at least 1")
    return parsed


def _write(record: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        write(record, options.json)
    if options.save:
        path = keep(record, "ddp", _HERE / "results")
        print(f"saved {path.relative_to(_HERE.parent)}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    options = _arguments(arguments)
    if options.rank:
        _rank(options.repeats, float(options.bucket_mb))
        return 0
    record: dict[str, Any] = head("step time of the text model under DDP, one host")
    record |= {"repeats": options.repeats, "steps": _STEPS, "jobs": []}
    for ranks in map(int, options.np.split(",")):
        for bucket_mb in map(float, options.bucket_mb.split(",")):
            given = ["--rank", "--repeats", str(options.repeats), "--bucket-mb", str(bucket_mb)]
            environment = {"PYTHONPATH": str(_HERE), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            try:
                (message,) = jobs.run(
                    "ddp", given, jobs.Placement(ranks), mpi=False, limit=600, environment=environment
                )
            except jobs.JobFailed as error:
                print(f"ddp: {error}", file=sys.stderr)
                return 2
            results = message["ranks"]
            record["versions"] = results[0]["versions"]
            record["jobs"].append(_summary(results, bucket_mb))
    if options.json != "-":
        print(_tables(record))
    wrong = [
        (n, d) for job in record["jobs"] for n, d in enumerate(job["differences"]) if not d <= _TOLERANCE
    ]
    for rank, difference in wrong:
        print(f"WRONG: on rank {rank} parameters differ by {difference:g}", file=sys.stderr)
    if wrong:
        return 1
    _write(record, options)
    return 3 if options.strict and any(job["ratio"] < 1 for job in record["jobs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
