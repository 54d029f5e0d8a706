"""The example of JAX: one worker and two walk down the same loss curve, and it learns to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from faces.digits import train

pytest.importorskip("jax")
pytest.importorskip("optax")
pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "jax_digits.py"


def test_any_number_of_workers_learns_the_same(tmp_path: Path) -> None:
    options = ("--dtype", "float64", "--epochs", "2", "--batch-size", "50")  # the last batch is smaller
    alone, _ = train(EXAMPLE, 1, tmp_path, *options)
    together, _ = train(EXAMPLE, 2, tmp_path, *options)
    assert len(alone) == 2 * -(-1437 // 50)
    assert together == pytest.approx(alone, rel=1e-5)
    assert alone[-1] < alone[0] / 2


@pytest.mark.slow
def test_it_learns_to_read(tmp_path: Path) -> None:
    _, accuracy = train(EXAMPLE, 2, tmp_path)
    assert accuracy >= 0.97
