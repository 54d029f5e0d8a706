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

from comm import ranks

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


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_job_ends_where_the_formula_leads(tmp_path: Path, momentum: float) -> None:
    _, got = job(4, tmp_path, "--lr", "0.05", "--momentum", str(momentum), "--epochs", "1")
    steps = alone("adasum", 4, 0.05, momentum=momentum, epochs=1)
    assert len(steps) == 44
    np.testing.assert_allclose(got, steps[-1], rtol=0, atol=1e-10)
    average = alone("average", 4, 0.05, momentum=momentum, epochs=1)[-1]
    assert np.abs(got - average).max() > 0.01
