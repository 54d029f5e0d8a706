"""The example: it learns, and one worker and two walk down the same loss curve."""

from __future__ import annotations

from pathlib import Path

import pytest

from faces.example_runs import train_example

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")


@pytest.mark.parametrize("options", [(), ("--eager",)])
def test_any_number_of_workers_learns_the_same(tmp_path: Path, options: tuple[str, ...]) -> None:
    alone, accuracy = train_example("tensorflow_digits.py", 1, tmp_path, "--epochs", "6", *options)
    together, same = train_example("tensorflow_digits.py", 2, tmp_path, "--epochs", "6", *options)
    assert together == pytest.approx(alone, rel=1e-3)
    assert accuracy > 0.93
    assert same == pytest.approx(accuracy, abs=0.01)
