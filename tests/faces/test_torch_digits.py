"""The example: it learns, and one worker and three walk down the same loss curve."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("tqdm")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_digits.py"


def train(size: int, folder: Path, *options: str) -> tuple[list[float], float]:
    """Runs the example on ``size`` workers; returns its losses, and the accuracy of its last line."""
    losses = folder / f"losses-{size}.json"
    job = {
        "SLIPSTREAM_RENDEZVOUS": f"file://{folder / f'meeting-{size}'}",
        "SLIPSTREAM_SECRET": secrets.token_hex(32),
        "SLIPSTREAM_SIZE": str(size),
    }
    workers = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLE), "--loss-file", str(losses), *options],
            env={**os.environ, **job, "SLIPSTREAM_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [worker.communicate(timeout=240) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for worker, (_, errors) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, errors
    assert all(not output for output, _ in outputs[1:])
    name, accuracy = outputs[0][0].splitlines()[-1].split(": ")
    assert name == "accuracy"
    return json.loads(losses.read_text()), float(accuracy)


def test_any_number_of_workers_learns_the_same(tmp_path: Path) -> None:
    options = ("--dtype", "float64", "--epochs", "3", "--batch-size", "50")  # the last batch is smaller
    alone, _ = train(1, tmp_path, *options)
    together, _ = train(3, tmp_path, *options)
    assert len(alone) == 3 * -(-1437 // 50)
    assert together == pytest.approx(alone, rel=1e-5)
    assert alone[-1] < alone[0] / 2


@pytest.mark.slow
def test_it_learns_to_read(tmp_path: Path) -> None:
    _, accuracy = train(2, tmp_path)
    assert accuracy >= 0.97
