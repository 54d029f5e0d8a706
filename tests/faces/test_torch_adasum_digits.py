"""The example: with Adasum many workers learn at the rate of one, where averaging at a scaled rate fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_adasum_digits.py"


def accuracy(size: int, *options: str) -> float:
    """What the last line of the example says that ``size`` workers have reached."""
    command = [sys.executable, "-m", "slipstream", "run", "-np", str(size), "--"]
    run = subprocess.run(
        [*command, sys.executable, str(EXAMPLE), *options], capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr
    return float(run.stdout.rpartition("accuracy: ")[2])


def test_four_workers_learn_with_adasum() -> None:
    assert accuracy(4) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("size", "least"), [(4, 0.9), (8, 0.85)])
def test_adasum_learns_where_averaging_fails(size: int, least: float) -> None:
    assert accuracy(size) >= least
    assert accuracy(size, "--op", "average", "--scale-lr") < 0.3
