"""What the gradient pipeline gains: training steps of 4 hosts with wires and reducers, and how much of them is hidden.

    python benchmarks/pipeline.py                           # all of it: over an hour; root, iproute2 and PyTorch
    python benchmarks/pipeline.py wires --models resnet50   # steps by wire, with and without reducers: five minutes
    python benchmarks/pipeline.py wires --models vgg16 --wires int8   # of one wire: five minutes
    python benchmarks/pipeline.py overlap                   # communication that takes half of compute, and all of it
    python benchmarks/pipeline.py --save                    # keep the records, and renew docs/benchmarks.md

Every part runs in a lab of links of 500 Mbit/s: `slipstream bench train`, where gloo takes turns with slipstream in the
same processes, and overlap_rank.py. Prints how the results compare with their targets. Ends with code 1 if a gradient
was wrong, 2 if a command failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.judgements import Judgement, judgement_table
from slipstream.bench.page import renew
from slipstream.bench.record import head, keep, origin
from slipstream.bench.shell import SLIPSTREAM, WrongResult, bench_record, in_lab, last_object
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
_DOCUMENT = _HERE.parent / "docs" / "benchmarks.md"
_RATE = "500mbit"
_MODELS = {"resnet50": "0.35s", "vgg16": "0.4s", "bert-base": "0.57s"}
_WIRES = ("exact", "bf16", "f16", "int8")
# How a model is trained: the contender of `slipstream bench train`, what wraps the model, and what is beside it.
_WAYS = {
    "ring": ("slipstream-ring", "DDP", "none"),
    "reducers": ("slipstream", "DDP", "4 reducers"),
    "optimizer": ("slipstream-horovod", "DistributedOptimizer", "4 reducers"),
}
_AGAINST = "slipstream-ring,slipstream-horovod,gloo"
# Times faster than gloo's step: wire -> wanted without reducers, and beside 4.
_WANTED = {"exact": (1.0, 1.45), "f16": (1.85, 2.7), "int8": (None, 5.0)}
# Of resnet50, whose gradients take 2.45 s here: compute time, and the longest step, in plain ones.
_OVERLAP = {"half of compute": ("4.9", 1.05), "as long as compute": ("2.45", 1.15)}
_STEPS = 8

Record = dict[str, Any]


def wires(models: Sequence[str], names: Sequence[str]) -> Record:
    """A step of each model with each of these wires: beside 4 reducers, without them, and over gloo."""
    records = {}
    for model in models:
        for wire in names:
            bench = ["train", "-np", "4", "--model", model, "--compute-time", _MODELS[model]]
            bench += ["--wire", wire, "--reducers", "auto", "--against", _AGAINST]
            bench += ["--repeats", "2", "--steps", "2", "--limit", "1800"]
            record = bench_record(bench, ["--hosts", "4", "--reducers", "4", "--rate", _RATE])
            records[f"{model} {wire}"] = _speeds(record)
    return records


def _speeds(record: Record) -> Record:
    rows = record["contenders"]
    return {
        "gloo": rows["gloo"]["step"]["median"],
        "plain": record["plain"],
        **{
            name: {
                "step": rows[contender]["step"]["median"],
                "communication": rows[contender]["communication"]["median"],
                "against_gloo": rows[contender]["ratio"]["gloo"]["value"],
            }
            for name, (contender, *_) in _WAYS.items()
        },
    }


def overlap(*_: Sequence[str]) -> Record:
    """How much longer a step is than its compute, where communication takes half of that, and as long."""
    records = {}
    for name, (seconds, _wanted) in _OVERLAP.items():
        rank = [sys.executable, str(_HERE / "overlap_rank.py"), "resnet50", seconds, str(_STEPS)]
        job = [*SLIPSTREAM, "run", "-np", "4", "--no-prefix", "--", *rank]
        found = last_object(in_lab(["--hosts", "4", "--rate", _RATE], job))
        if found["wrong"]:
            raise WrongResult(f"{found['wrong']} parameters, communication {name}")
        records[name] = found
    return records


def judge(record: Record) -> list[Judgement]:
    """How a record compares with the targets."""
    found = []
    for name, one in record.get("wires", {}).items():
        model, wire = name.split()
        for way, (_, wrapper, beside) in _WAYS.items():
            wanted = _WANTED.get(wire, (None, None))[beside != "none"]
            if wanted is not None and way in one:
                speed = one[way]["against_gloo"]
                what = (
                    f"{model}, {wire}, {wrapper}, beside: {beside}: speed of a step relative to DDP over gloo"
                )
                found.append(Judgement(what, f">= {wanted:g}x", f"{speed:.2f}x", speed >= wanted))
    for name, one in record.get("overlap", {}).items():
        longer, wanted = one["overlap"] / one["plain"], _OVERLAP[name][1]
        what = f"communication {name}, overlap_forward: a step relative to its compute"
        found.append(Judgement(what, f"<= {wanted:g}x", f"{longer:.2f}x", longer <= wanted))
    return found


def page(record: Record) -> str:
    """What docs/benchmarks.md says of a record."""
    parts = [f"{origin(record)}; 4 ranks on 4 hosts of a lab, links of {_RATE}; compute is a delay."]
    if "wires" in record:
        rows = []
        for name, one in record["wires"].items():
            model, wire = name.split()
            for way, (_, wrapper, beside) in _WAYS.items():
                if way in one:
                    step, speed = one[way]["step"], one[way]["against_gloo"]
                    times = f"{step * 1e3:.0f} ms", f"{one['gloo'] * 1e3:.0f} ms"
                    rows.append([model, wire, wrapper, beside, *times, f"{speed:.2f}x"])
        parts.append(grid(("model", "wire", "wrapper", "beside", "step", "DDP over gloo", "vs gloo"), rows))
    if "overlap" in record:
        columns = ("communication", "contender", "compute", "step", "of compute")
        parts.append(grid(columns, [row for one in record["overlap"].items() for row in _overlap_rows(*one)]))
    parts.append(judgement_table(judge(record)))
    return "\n\n".join(parts)


def _overlap_rows(communication: str, steps: Record) -> list[list[str]]:
    names = {"overlap": "overlap_forward", "waiting": "DistributedOptimizer", "gloo": "DDP over gloo"}
    compute = steps["plain"]
    return [
        [
            communication,
            names[name],
            f"{compute * 1e3:.0f} ms",
            f"{steps[name] * 1e3:.0f} ms",
            f"{steps[name] / compute:.2f}x",
        ]
        for name in names
    ]


_PARTS = {"wires": wires, "overlap": overlap}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(_PARTS)} (all)")
    parser.add_argument("--models", default=",".join(_MODELS), help=f"for wires ({','.join(_MODELS)})")
    parser.add_argument("--save", action="store_true", help="keep the records, renew docs/benchmarks.md")
    parser.add_argument("--wires", default=",".join(_WIRES), help=f"for wires ({','.join(_WIRES)})")
    given = parser.parse_args(arguments)
    models, names = given.models.split(","), given.wires.split(",")
    unknown = sorted({*given.parts} - {*_PARTS} | {*models} - {*_MODELS} | {*names} - {*_WIRES})
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}")
    record: Record = head("pipeline")
    try:
        for name in given.parts or _PARTS:
            record[name] = _PARTS[name](models, names)
    except WrongResult as error:
        print(f"WRONG RESULT: {error}; nothing is kept", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2
    print(page(record))
    if given.save:
        keep(record, "pipeline", _RESULTS)
        renew(_DOCUMENT, "pipeline", page(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
