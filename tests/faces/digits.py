"""Runs the examples that learn to read digits, as workers without the launcher."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path


def train(example: Path, size: int, folder: Path, *options: str) -> tuple[list[float], float]:
    """Runs the ``example`` on ``size`` workers; returns its losses, and the accuracy of its last line."""
    losses = folder / f"losses-{size}.json"
    job = {
        "SLIPSTREAM_RENDEZVOUS": f"file://{folder / f'meeting-{size}'}",
        "SLIPSTREAM_SECRET": secrets.token_hex(32),
        "SLIPSTREAM_SIZE": str(size),
    }
    workers = [
        subprocess.Popen(
            [sys.executable, str(example), "--loss-file", str(losses), *options],
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
