"""Every cell of operation, type and layout is right on slipstream: a sample always, all in the slow run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent / "torch_table.py"
SAMPLE = 13  # coprime to the number of types and of layouts, so that all of both are met

pytest.importorskip("torch")


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(SAMPLE, id="sample"),
        pytest.param(1, id="all", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_cells_are_right(tmp_path: Path, every: int) -> None:
    file = tmp_path / "cells.json"
    process = subprocess.run(
        [sys.executable, str(SCRIPT), "--backend", "slipstream", "--every", str(every), "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert file.exists(), process.stderr
    cells = json.loads(file.read_text())["slipstream"]
    assert len(cells) > 3000 // every
    assert [cell for cell in cells if cell[3] != "right"] == []
