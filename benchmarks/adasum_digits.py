"""How far Adasum, the average and the sum go at each learning rate: digits on 4 and 8 workers, 3 seeds.

    python benchmarks/adasum_digits.py          # about two minutes of a processor
    python benchmarks/adasum_digits.py --save   # keep the record, renew docs/migrating.md

The workers of `examples/torch_adasum_digits.py` are simulated in one process, all rates and seeds at once, which takes
far less time than jobs do. `tests/faces/test_torch_adasum_digits.py` checks that a job ends with the same parameters.
Adasum is written here once more, from the formula of the paper alone, in float64 (Maleki et al., arXiv 2006.02924).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.func import functional_call, grad, vmap

from slipstream.bench.page import renew
from slipstream.bench.record import head, keep, origin
from slipstream.bench.table import grid

_HERE = Path(__file__).resolve().parent
sys.path.append(str(_HERE.parent / "examples"))

import torch_adasum_digits as example  # noqa: E402

_SETTINGS: tuple[dict[str, Any], ...] = (
    {"batch_size": 8, "epochs": 4, "momentum": 0.0, "scale": 1.0},
    {"batch_size": 32, "epochs": 8, "momentum": 0.0, "scale": 1.0},
    {"batch_size": 8, "epochs": 4, "momentum": 0.9, "scale": 0.1},
)
_RATES = (0.06, 0.09, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0)  # times the scale of a setting
_CASES = (("average", 1), *((op, workers) for workers in (4, 8) for op in ("adasum", "average", "sum")))

Stacked = dict[str, torch.Tensor]  # parameters by name, of several trainings: shape (trainings, ...)


def adasum(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the formula makes of ``vectors[..., worker, :]``, a power of two of workers: pairs, pairs of these, ..."""
    while vectors.shape[-2] > 1:
        a, b = vectors[..., 0::2, :], vectors[..., 1::2, :]
        dot, aa, bb = (np.sum(x * y, -1, keepdims=True) for x, y in ((a, b), (a, a), (b, b)))
        left, right = (1 - np.divide(dot, 2 * n, out=np.zeros_like(n), where=n != 0) for n in (aa, bb))
        vectors = left * a + right * b
    return vectors[..., 0, :]


def train(
    op: str,
    workers: int,
    runs: Sequence[tuple[float, int]],
    momentum: float = 0.0,
    epochs: int = 4,
    batch_size: int = 8,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Stacked]:
    """Trains as ``workers`` of the example would, all ``runs`` (learning rate, seed) at once; gives each step's end.

    With Adasum each worker steps on its own, with its own momentum, and their changes of each parameter are joined.
    """
    models = [_model(seed, dtype) for _, seed in runs]
    params = {name: torch.stack([one[name] for one in models]) for name in models[0]}
    images, labels = example.load_data(dtype)[:2]
    own = _gradients()
    velocity: Stacked = {}
    for batch in example.batches(len(images), epochs, batch_size * workers):
        # worker r takes batch[r], batch[r + workers], ...
        mine = batch.view(batch_size, workers).T
        found = own(params, images[mine], labels[mine])  # shape (runs, workers, ...)
        for name, gradient in found.items():
            if op != "adasum":
                gradient = gradient.sum(1, keepdim=True)
                gradient /= workers if op == "average" else 1
            moving = velocity.setdefault(name, torch.zeros_like(gradient))
            moving.mul_(momentum).add_(gradient)
            rates = torch.tensor([lr for lr, _ in runs], dtype=dtype).view(-1, *[1] * (gradient.dim() - 1))
            changes = (-rates * moving).flatten(2).double().numpy()
            change = adasum(changes) if op == "adasum" else changes[:, 0]
            params[name] = params[name] + torch.from_numpy(change).view_as(params[name]).to(dtype)
        yield params


def _model(seed: int, dtype: torch.dtype) -> Stacked:
    torch.manual_seed(seed)
    return {name: p.detach().to(dtype) for name, p in example.make_model().named_parameters()}


def _gradients() -> Callable[[Stacked, torch.Tensor, torch.Tensor], Stacked]:
    """A function of stacked parameters, and of images and labels of each worker, that gives gradients."""
    model = example.make_model()

    def loss(params: Stacked, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(model, params, (images,)), labels)

    return vmap(vmap(grad(loss), (None, 0, 0)), (0, None, None))


def accuracies(params: Stacked) -> list[float]:
    """Of each training, on the images held out for the test."""
    images, labels = example.load_data(next(iter(params.values())).dtype)[2:]
    model = example.make_model()
    logits = vmap(lambda one: functional_call(model, one, (images,)))(params)
    return (logits.argmax(-1) == labels).double().mean(-1).tolist()


def sweep(seeds: int) -> list[dict[str, Any]]:
    """Each setting with its rates, and for each case the accuracies: of each rate those of all seeds."""
    found = []
    for setting in _SETTINGS:
        rates = [round(rate * setting["scale"], 4) for rate in _RATES]
        cases = []
        for op, workers in _CASES:
            since = time.perf_counter()
            runs = [(rate, seed) for rate in rates for seed in range(seeds)]
            common = {name: setting[name] for name in ("momentum", "epochs", "batch_size")}
            steps, last = 0, {}
            for params in train(op, workers, runs, **common):
                steps, last = steps + 1, params
            ends = accuracies(last)
            reached = [ends[i : i + seeds] for i in range(0, len(ends), seeds)]
            cases.append({"op": op, "workers": workers, "steps": steps, "accuracies": reached})
            took = time.perf_counter() - since
            print(f"{common}, {op} of {workers}: {took:.1f} s", file=sys.stderr, flush=True)
        found.append({**common, "rates": rates, "cases": cases})
    return found


def table(setting: Mapping[str, Any]) -> str:
    """Mean accuracies in percent: a line for each case, a column for each rate; the best of a line is bold."""
    lines = []
    for case in setting["cases"]:
        means = [100 * statistics.fmean(reached) for reached in case["accuracies"]]
        cells = [f"**{mean:.1f}**" if mean == max(means) else f"{mean:.1f}" for mean in means]
        op = "" if case["workers"] == 1 else case["op"]
        lines.append((str(case["workers"]), op, str(case["steps"]), *cells))
    return grid(("workers", "op", "steps", *(f"{rate:g}" for rate in setting["rates"])), lines)


def page(record: Mapping[str, Any]) -> str:
    """What docs/migrating.md says of a record."""
    parts = [f"{origin(record)}. Mean accuracies in percent."]
    for setting in record["settings"]:
        seeds = len(setting["cases"][0]["accuracies"][0])
        parts.append(
            f"**{setting['batch_size']} images per step of each worker, {setting['epochs']} epochs, "
            f"momentum {setting['momentum']:g}**, {seeds} seeds, by learning rate:"
        )
        parts.append(table(setting))
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sweep; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each rate (3)")
    parser.add_argument("--save", action="store_true", help="keep the record, renew docs/migrating.md")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    record = head("adasum_digits") | {"settings": sweep(given.seeds)}
    print(page(record))
    if given.save:
        keep(record, "adasum_digits", _HERE / "results")
        renew(_HERE.parent / "docs" / "migrating.md", "adasum_digits", page(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
