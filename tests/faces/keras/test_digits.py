"""The example: it learns, and one worker and two walk down the same loss curve, on each back end."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from faces.example_runs import train_example

pytest.importorskip("keras")
pytest.importorskip("sklearn")


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_any_number_of_workers_learns_the_same(tmp_path: Path, backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environment = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    options = "--epochs", "4"
    alone, accuracy = train_example("keras_digits.py", 1, tmp_path, *options, environment=environment)
    together, same = train_example("keras_digits.py", 2, tmp_path, *options, environment=environment)
    assert together == pytest.approx(alone, rel=0.02)
    assert accuracy > 0.93
    assert same == pytest.approx(accuracy, abs=0.02)
