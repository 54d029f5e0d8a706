"""How many bulk lanes a link has by default, where they gain and where they may not be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.lab import Lab

RANK = Path(__file__).with_name("lane_count_rank.py")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


@pytest.mark.parametrize(("options", "lanes"), [((), 16), (("--lanes", "3"), 3)])
def test_a_link_over_several_paths_gets_lanes_unless_their_number_is_given(
    options: tuple[str, ...], lanes: int
) -> None:
    """Four paths: 2 lanes use half of them at most."""
    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", *options, "--"]
    with Lab(2, paths=["60mbit"] * 4) as lab:
        done = lab.run("h1", [*command, sys.executable, str(RANK), str(lanes)], timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_lanes_that_have_won_end_once_they_gain_nothing() -> None:
    """Four paths, and then one bottleneck before them: a review finds that 2 lanes fill it."""
    command = [
        sys.executable,
        "-m",
        "slipstream",
        "run",
        "-np",
        "2",
        "--",
        sys.executable,
        str(RANK),
        "16",
        "2",
    ]
    with Lab(2, paths=["60mbit"] * 4) as lab:
        env = {"SLIPSTREAM_LOG": "info"}
        with lab.popen("h1", command, env=env, stderr=subprocess.PIPE, text=True) as job:
            assert job.stderr is not None
            assert any("16 stay" in line for line in job.stderr)
            for host in lab.hosts:
                lab.rate(host, "40mbit")
            assert any("2 stay" in line for line in job.stderr)
            job.stderr.read()
            assert job.wait() == 0
