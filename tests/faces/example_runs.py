"""Examples that train on digits, run on some workers."""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path

import fork_server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def train_example(
    name: str, size: int, folder: Path, *options: str, environment: dict[str, str] | None = None
) -> tuple[list[float], float]:
    """Runs an example on ``size`` workers; returns the losses and the accuracy that rank 0, and no other, tells."""
    losses = folder / f"losses-{size}.json"
    job = {
        "SLIPSTREAM_RENDEZVOUS": f"file://{folder / f'meeting-{size}'}",
        "SLIPSTREAM_SECRET": secrets.token_hex(32),
        "SLIPSTREAM_SIZE": str(size),
        **(environment or {}),
    }
    outputs = [folder / f"output-{size}-{rank}" for rank in range(size)]
    workers = []
    try:
        for rank, output in enumerate(outputs):
            environment = {**os.environ, **job, "SLIPSTREAM_RANK": str(rank)}
            arguments = ["--loss-file", str(losses), *options]
            with output.open("wb") as file:
                workers.append(fork_server.Process(EXAMPLES / name, arguments, environment, file.fileno()))
        codes = [worker.wait(240) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    said = [output.read_text(errors="replace") for output in outputs]
    assert not any(codes), "\n".join(said)
    (accuracy,), *others = [re.findall(r"^accuracy: (\S+)$", text, re.MULTILINE) for text in said]
    assert not any(others)
    return json.loads(losses.read_text()), float(accuracy)
