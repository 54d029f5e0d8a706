"""The example: it learns, and one worker and three walk down the same loss curve."""

from __future__ import annotations

from pathlib import Path

import pytest

from faces.digits import train

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("tqdm")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_digits.py"


def test_any_number_of_workers_learns_the_same(tmp_path: Path) -> None:
    options = ("--dtype", "float64", "--epochs", "3", "--batch-size", "50")  # the last batch is smaller
    alone, _ = train(EXAMPLE, 1, tmp_path, *options)
    together, _ = train(EXAMPLE, 3, tmp_path, *options)
    assert len(alone) == 3 * -(-1437 // 50)
    assert together == pytest.approx(alone, rel=1e-5)
    assert alone[-1] < alone[0] / 2


@pytest.mark.slow
def test_it_learns_to_read(tmp_path: Path) -> None:
    _, accuracy = train(EXAMPLE, 2, tmp_path)
    assert accuracy >= 0.97
