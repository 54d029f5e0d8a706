"""The recipes of docs/recipes.md, each on two ranks; those whose library is not installed are skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).parent
GLOO = ("--replace", "gloo")


def outcome(command: list[str]) -> str:
    """What it prints; AssertionError with that if it fails."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "options"),
    [
        ("accelerate", GLOO),
        ("transformers", GLOO),
        ("lightning", ()),
        ("ignite", GLOO),
        ("skorch", ()),
        ("deepspeed", ()),
    ],
)
def test_two_ranks_train(library: str, options: tuple[str, ...]) -> None:
    pytest.importorskip(library)
    if library == "transformers":
        pytest.importorskip("accelerate")
    script = HERE / f"{library}_rank.py"
    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--no-prefix", *options, "--"]
    assert outcome([*command, sys.executable, str(script)]).splitlines().count("ok") == 2


@pytest.mark.slow
def test_ray_train() -> None:
    pytest.importorskip("ray.train.torch", exc_type=ImportError)  # Ray without what Ray Train needs
    assert "passed on two workers\n" in outcome([sys.executable, str(HERE / "ray_train_driver.py")])


@pytest.mark.slow
def test_torchft() -> None:
    coordination = pytest.importorskip("torchft.coordination")
    lighthouse = coordination.LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
    script = [sys.executable, str(HERE / "torchft_rank.py")]
    leaves = subprocess.Popen([*script, "leaves", lighthouse.address()], stderr=subprocess.DEVNULL)
    try:
        assert "ok\n" in outcome([*script, "stays", lighthouse.address()])
        assert leaves.wait(60) == 0
    finally:
        leaves.kill()
        lighthouse.shutdown()
