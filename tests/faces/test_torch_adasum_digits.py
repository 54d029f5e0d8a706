"""The example of Adasum: a job walks as the paper's formula says, and learns at rates as the documentation says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from comm import ranks  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "torch_adasum_digits.py"
sys.path.append(str(ROOT / "benchmarks"))

import adasum_digits  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def job(size: int, folder: Path, *options: str) -> tuple[float, np.ndarray]:
    """The accuracy and the parameters that ``size`` workers of the example reach in float64."""
    path = folder / "parameters.npy"
    options = ("--dtype", "float64", "--save", str(path), *options)
    first, *others = ranks.run(EXAMPLE, size, args=options, timeout=280)
    assert others == [""] * (size - 1)
    return float(first.rpartition("accuracy: ")[2]), np.load(path)


def alone(op: str, size: int, lr: float, **options: Any) -> list[np.ndarray]:
    """The parameters after each step of the same training in one process."""
    steps = adasum_digits.train(op, size, [(lr, 0)], dtype=torch.float64, **options)
    return [np.concatenate([p.flatten().numpy() for p in params.values()]) for params in steps]


def test_a_job_ends_where_the_formula_leads(tmp_path: Path) -> None:
    _, got = job(4, tmp_path, "--lr", "0.05", "--momentum", "0.9", "--epochs", "1")
    steps = alone("adasum", 4, 0.05, momentum=0.9, epochs=1)
    assert len(steps) == 44
    np.testing.assert_allclose(got, steps[-1], rtol=0, atol=1e-10)
    average = alone("average", 4, 0.05, momentum=0.9, epochs=1)[-1]
    assert np.abs(got - average).max() > 0.01


def reached(op: str, size: int, lr: float, **options: int) -> float:
    """The mean accuracy of three seeds, in one process."""
    last: adasum_digits.Stacked = {}
    for params in adasum_digits.train(op, size, [(lr, seed) for seed in range(3)], **options):
        last = params
    return float(np.mean(adasum_digits.accuracies(last)))


def test_many_workers_learn_at_the_rate_of_one_with_adasum_alone() -> None:
    assert reached("adasum", 8, 0.18) > 0.86
    assert reached("average", 8, 0.18) < 0.8
    assert reached("sum", 8, 0.18) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize(("size", "least"), [(4, 0.9), (8, 0.85)])
def test_a_job_learns_at_the_rate_of_one(tmp_path: Path, size: int, least: float) -> None:
    accuracy, got = job(size, tmp_path)
    assert accuracy >= least
    np.testing.assert_allclose(got, alone("adasum", size, 0.18)[-1], rtol=0, atol=1e-7)
    assert job(size, tmp_path, "--op", "sum", "--lr", "0.25")[0] < 0.6


@pytest.mark.slow
def test_with_large_batches_no_rate_of_the_average_is_as_good() -> None:
    options = {"batch_size": 32, "epochs": 8}
    rates = (0.25, 0.35, 0.5, 0.7)
    best = {op: max(reached(op, 4, lr, **options) for lr in rates) for op in ("adasum", "average")}
    assert best["adasum"] > best["average"] + 0.01
