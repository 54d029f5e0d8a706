"""The timeline of ranks on several hosts whose clocks differ: a barrier ends on all of them at the same time."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from observe.barriers import spread
from slipstream.lab import Lab

RANK = Path(__file__).parents[1] / "observe" / "one_timeline_rank.py"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


@pytest.mark.alone
@pytest.mark.parametrize("case", ["work", "wrong"])
def test_clocks_of_four_hosts_are_aligned(tmp_path: Path, case: str) -> None:
    file = tmp_path / "all.json"
    command = [sys.executable, "-m", "slipstream", "run", "-np", "4", "--timeline", str(file), "--"]
    with Lab(4, rate="500mbit") as lab:
        done = lab.run("h1", [*command, sys.executable, str(RANK), case], capture_output=True)
    assert done.returncode == 0, done.stderr
    # microseconds; clocks are 100 s apart from rank to rank
    assert spread(json.loads(file.read_text()), 4) < 10_000
