"""Where trainings end whose gradients travel in fewer bits: a CNN on digits, a small GPT on text, 4 workers.

    python benchmarks/accuracy.py                          # both, 3 seeds: about ten minutes on 2 cores
    python benchmarks/accuracy.py digits --seeds 1 --steps 40
    python benchmarks/accuracy.py --save                   # keep the record, draw the curves, renew docs/compression.md

The workers are ranks of one host that take each other for hosts, since wires act between hosts. All ways of a seed
begin with the same parameters and see the same batches. The loss is that of data held out; the targets are printed with
the table. Ends with code 1 if a job failed, or ranks did not end with the same parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.page import renew
from slipstream.bench.plot import picture
from slipstream.bench.record import head, keep, origin
from slipstream.bench.shell import SLIPSTREAM, last_object
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
_DOCUMENT = _HERE.parent / "docs" / "compression.md"
_PLOTS = _HERE.parent / "docs" / "plots"
_WORKERS = 4
_WAYS = ("exact", "bf16", "f16", "f8", "int8", "top-k 1 %", "PowerSGD 4")
_BOUNDS = {
    "bf16": 0.1,
    "f16": 0.1,
    "f8": 0.5,
    "int8": 0.5,
}  # percent of the exact loss, beyond the noise of seeds
_TASKS = {"digits": 460, "text": 300}  # steps
_POINTS = 40  # of a curve

Found = dict[
    str, list[dict[str, Any]]
]  # by way, one for each seed: "loss", "curve", and "accuracy" of digits


def _compressions() -> dict[str, Any]:
    from slipstream.torch import Compression

    return dict(
        zip(
            _WAYS,
            (
                Compression.exact,
                Compression.bf16,
                Compression.fp16,
                Compression.f8,
                Compression.int8,
                Compression.topk(0.01),
                Compression.powersgd(rank=4),
            ),
            strict=True,
        )
    )


def _digits(seed: int) -> tuple[Any, Callable[[int], Any], Callable[[], dict[str, float]], Any]:
    """The model, the loss of this worker's part of a step, what is judged at the end, and the optimizer."""
    import torch
    import torch.nn.functional as F
    import torch_digits

    import slipstream.torch as hvd

    torch.manual_seed(seed)
    train_x, train_y, test_x, test_y = torch_digits.load_data(torch.float32)
    model = torch_digits.Net()

    def loss(step: int) -> Any:
        chosen = torch.randint(
            len(train_x), (64,), generator=torch.Generator().manual_seed(1000 * seed + step)
        )
        mine = chosen[hvd.rank() :: hvd.size()]
        return F.cross_entropy(model(train_x[mine]), train_y[mine])

    def judge() -> dict[str, float]:
        logits = model(test_x)
        right = (logits.argmax(1) == test_y).double().mean()
        return {"loss": F.cross_entropy(logits, test_y).item(), "accuracy": right.item()}

    return model, loss, judge, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _text(seed: int) -> tuple[Any, Callable[[int], Any], Callable[[], dict[str, float]], Any]:
    import text_model
    import torch

    import slipstream.torch as hvd

    torch.manual_seed(seed)
    text = text_model.load_text()
    model = text_model.GPT(width=64)

    def mean(sequences: Any) -> Any:
        return model(sequences) / (len(sequences) * text_model.CONTEXT)

    def loss(step: int) -> Any:
        return mean(text.batch(1000 * seed + step, 16)[hvd.rank() :: hvd.size()])

    def judge() -> dict[str, float]:
        batches = text.validation_batches(32)
        return {"loss": statistics.fmean(mean(batch).item() for batch in batches)}

    return model, loss, judge, torch.optim.AdamW(model.parameters(), lr=2e-3)


def _train(task: str, seed: int, compression: Any, steps: int) -> dict[str, Any]:
    """One training on all ranks; what rank 0 found."""
    import torch

    import slipstream.torch as hvd

    model, loss_of, judge, optimizer = (_digits if task == "digits" else _text)(seed)
    distributed = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)
    losses = torch.zeros(steps)
    for step in range(steps):
        distributed.zero_grad()
        loss = loss_of(step)
        loss.backward()
        distributed.step()
        losses[step] = loss.detach()
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    bits = flat.view(torch.int32)
    if not torch.equal(hvd.allreduce(bits, op=hvd.Min), hvd.allreduce(bits, op=hvd.Max)):
        raise SystemExit(f"rank {hvd.rank()}: the ranks do not end with the same parameters")
    with torch.no_grad():
        found: dict[str, Any] = dict(judge())
    parts = hvd.allreduce(losses).split(max(1, steps // _POINTS))
    found["curve"] = [part.mean().item() for part in parts]
    return found


def _rank(tasks: Sequence[str], seeds: int, steps: int | None) -> None:
    """All trainings; rank 0 prints what they found."""
    os.environ["SLIPSTREAM_HOST_ID"] = f"host-{os.environ['SLIPSTREAM_RANK']}"
    import torch

    import slipstream.torch as hvd

    sys.path.insert(0, str(_HERE.parent / "examples"))
    torch.set_num_threads(1)
    hvd.init()
    ways = _compressions()
    found: dict[str, Found] = {task: {way: [] for way in ways} for task in tasks}
    for task in tasks:
        for seed in range(seeds):
            for way, compression in ways.items():
                since = time.perf_counter()
                found[task][way].append(_train(task, seed, compression, steps or _TASKS[task]))
                if hvd.rank() == 0:
                    took = time.perf_counter() - since
                    print(f"{task}, seed {seed}, {way}: {took:.1f} s", file=sys.stderr, flush=True)
    if hvd.rank() == 0:
        print(json.dumps(found), flush=True)
    hvd.shutdown()


def rows(found: Found) -> list[tuple[str, ...]]:
    """The lines of a table: means and spreads over the seeds, and the mean difference to the same seed's exact run."""
    exact = [one["loss"] for one in found["exact"]]
    lines = []
    for way, runs in found.items():
        losses = [one["loss"] for one in runs]
        more = [100 * (loss / base - 1) for loss, base in zip(losses, exact, strict=True)]
        lines.append(
            (
                way,
                f"{statistics.fmean(losses):.4f}",
                f"{min(losses):.4f} to {max(losses):.4f}",
                "" if way == "exact" else f"{statistics.fmean(more):+.2f} %",
                f"{100 * statistics.fmean(one['accuracy'] for one in runs):.2f} %"
                if "accuracy" in runs[0]
                else "",
            )
        )
    return lines


_COLUMNS = ("way", "loss", "seeds", "to exact", "accuracy")


def noise(found: Found) -> float:
    """How far the exact runs of the seeds lie apart, in percent of their mean: their standard deviation."""
    losses = [one["loss"] for one in found["exact"]]
    return 100 * statistics.stdev(losses) / statistics.fmean(losses) if len(losses) > 1 else 0.0


def verdicts(found: Found) -> list[str]:
    """For each way with a bound: whether its mean loss is within it, or within the noise of the seeds."""
    lines = []
    exact = statistics.fmean(one["loss"] for one in found["exact"])
    for way, bound in _BOUNDS.items():
        more = 100 * (statistics.fmean(one["loss"] for one in found[way]) / exact - 1)
        how = "within the bound" if more <= bound else "within noise" if more <= noise(found) else "MISSED"
        lines.append(
            f"{way}: {more:+.2f} % (bound {bound:g} %, noise of the seeds {noise(found):.2f} %): {how}"
        )
    return lines


def draw(task: str, found: Found, steps: int) -> None:
    """The curves of the training loss, means over the seeds, as an SVG in docs/plots."""
    with picture(_PLOTS / f"accuracy-{task}.svg", 7, 4) as axes:
        for way, runs in found.items():
            curve = [statistics.fmean(points) for points in zip(*(one["curve"] for one in runs), strict=True)]
            axes.plot(
                [steps * (i + 1) / len(curve) for i in range(len(curve))], curve, label=way, linewidth=1.2
            )
        axes.set_xlabel("step")
        axes.set_ylabel("training loss")
        axes.set_yscale("log")
        axes.set_title(f"{task}: {_WORKERS} workers, mean of {len(found['exact'])} seeds")
        axes.legend(fontsize=8)


def page(record: Mapping[str, Any]) -> str:
    """What docs/compression.md says of a record."""
    parts = [f"{origin(record)}. {_WORKERS} workers, each taken for a host."]
    for task, steps in _TASKS.items():
        if task in record:
            found = record[task]
            title = f"**{task}**, {record['steps'] or steps} steps, {len(found['exact'])} seeds"
            parts += [title, grid(_COLUMNS, rows(found)), f"![Training loss](plots/accuracy-{task}.svg)"]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tasks that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(_TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each way (3)")
    parser.add_argument("--steps", type=int, help=f"of a training ({_TASKS['digits']} and {_TASKS['text']})")
    parser.add_argument(
        "--save", action="store_true", help="keep the record, draw curves, renew docs/compression.md"
    )
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # be one
    given = parser.parse_args(arguments)
    tasks = given.tasks or list(_TASKS)
    if unknown := sorted(set(tasks) - set(_TASKS)):
        parser.error(f"no task {', '.join(unknown)}: expected some of {', '.join(_TASKS)}")
    if given.rank:
        _rank(tasks, given.seeds, given.steps)
        return 0
    record = head("accuracy") | {"steps": given.steps}
    options = ["--seeds", str(given.seeds), *(["--steps", str(given.steps)] if given.steps else [])]
    own = [sys.executable, str(Path(__file__).resolve()), *tasks, "--rank", *options]
    try:
        record |= last_object([*SLIPSTREAM, "run", "-np", str(_WORKERS), "--no-prefix", "--", *own])
    except subprocess.CalledProcessError as error:
        print(f"accuracy: the job failed with code {error.returncode}", file=sys.stderr)
        return 1
    for task in tasks:
        print(f"{task}\n{grid(_COLUMNS, rows(record[task]))}", *verdicts(record[task]), "", sep="\n")
    if given.save:
        keep(record, "accuracy", _HERE / "results")
        for task in tasks:
            draw(task, record[task], given.steps or _TASKS[task])
        renew(_DOCUMENT, "accuracy", page(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
