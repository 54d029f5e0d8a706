"""The summary of a job one of whose hosts has a slow link names that host, and the network as the cause."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from slipstream.lab import Lab

RANK = Path(__file__).with_name("straggler_rank.py")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


def test_a_host_with_a_slow_link_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    command = [sys.executable, "-m", "slipstream", "run", "-np", "4", "--summary", str(file), "--"]
    with Lab(4, rate="400mbit") as lab:
        lab.rate("h3", "60mbit")
        done = lab.run(
            "h1", [*command, sys.executable, str(RANK)], timeout=120, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["straggler"] is not None, found
    assert (found["straggler"]["ranks"], found["straggler"]["cause"]) == ([2], "network"), found
