"""The text examples: they learn, slipstream's loss curve is gloo's, and that of one worker is that of four."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tqdm")
dist = pytest.importorskip("torch.distributed")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SCRIPTS = {kind: str(EXAMPLES / f"torch_{kind}_text.py") for kind in ("ddp", "fsdp")}
TOLERANCE = 1e-4
FEW = ("--steps", "8", "--target", "inf")
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
    "slipstream": ["-m", "slipstream", "run", "-np"],
}


def launched(launcher: str, size: int, kind: str, *options: str, limit: float = 100.0) -> str:
    """Runs an example on slipstream, as a user would; returns what it printed. Fails if the example does."""
    script = [SCRIPTS[kind], *options]
    if launcher == "slipstream":
        script = ["--", sys.executable, *script]
    command = [sys.executable, *LAUNCHERS[launcher], str(size), *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def curve(file: Path) -> list[float]:
    """The losses of every step and of the validation that an example wrote."""
    found = json.loads(file.read_text())
    return [*found["losses"], found["validation"]]


def gloo_curve(size: int, kind: str, file: Path, *options: str, limit: float = 100.0) -> list[float]:
    """The losses of an example on gloo.

    The ranks are started here, and how they exit does not count: gloo's threads at times drop their last tensor
    while Python ends, which aborts the process, and launchers would then end the ranks that still write.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is here, not in rank 0
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, SCRIPTS[kind], "--backend", "gloo", "--json", str(file), *options]
    ranks = [
        subprocess.Popen(
            command, env={**os.environ, **job, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    try:
        errors = [rank.communicate(timeout=limit)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert file.exists(), "\n".join(errors)
    return curve(file)


@pytest.mark.parametrize(
    ("kind", "launchers"),
    [("ddp", ["torchrun", "slipstream"]), pytest.param("fsdp", ["torchrun"], marks=pytest.mark.slow)],
)
def test_the_curve_is_that_of_gloo(kind: str, launchers: list[str], tmp_path: Path) -> None:
    theirs = gloo_curve(2, kind, tmp_path / "gloo.json", *FEW)
    assert len(theirs) == 8 + 1
    assert theirs[-1] < theirs[0] - 0.5  # it learns: equal curves mean something
    for launcher in launchers:
        ours = tmp_path / f"{launcher}.json"
        printed = launched(launcher, 2, kind, "--json", str(ours), *FEW)
        assert "target inf reached" in printed
        assert curve(ours) == pytest.approx(theirs, abs=TOLERANCE)


def test_a_missed_target_is_an_error() -> None:
    command = [sys.executable, *LAUNCHERS["torchrun"], "1", SCRIPTS["ddp"], "--steps", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "NOT reached" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_any_number_of_workers_reaches_the_target(kind: str, tmp_path: Path) -> None:
    curves = {}
    for size in (1, 2, 4):
        file = tmp_path / f"{size}.json"
        launched("torchrun", size, kind, "--json", str(file), limit=500)  # an error unless it is reached
        curves[size] = curve(file)
    for size in (2, 4):
        assert curves[size] == pytest.approx(curves[1], abs=TOLERANCE)
