"""`slipstream run --min-np`: a job that shrinks outlives its lost ranks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
import numpy as np
import slipstream
slipstream.init()
first, victims = slipstream.rank(), [int(r) for r in sys.argv[1].split(",")]
try:
    for i in range(1 << 40):
        if i == 10 and first in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        slipstream.all_reduce(np.ones(100))
except slipstream.SlipstreamError:
    group = slipstream.world().shrink()
    print("now", slipstream.all_reduce(np.array([first]))[0], "of", group.size)
"""


def run(tmp_path: Path, victims: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "slipstream", "run", "-np", "4", *options, "--", sys.executable]
    return subprocess.run(
        [*command, str(script), victims], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_job_goes_on_while_enough_ranks_are_left(tmp_path: Path) -> None:
    found = run(tmp_path, "0,2", "--min-np", "2")
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("now 4 of 2") == 2
    assert "rank 0 on host" in found.stderr
    assert "the job goes on with 2 of 4 ranks (--min-np 2)" in found.stderr


def test_it_ends_when_fewer_are_left(tmp_path: Path) -> None:
    assert run(tmp_path, "0,2", "--min-np", "3").returncode == 137
    assert run(tmp_path, "1").returncode == 137


@pytest.mark.slow
def test_the_launcher_says_for_whom_it_still_waits() -> None:
    stops = "import os, signal; int(os.environ['SLIPSTREAM_RANK']) and os.kill(os.getpid(), signal.SIGSTOP)"
    command = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--", sys.executable, "-c", stops]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stderr is not None
        line = launcher.stderr.readline()  # pytest's own time-out is the bound
        launcher.send_signal(signal.SIGINT)
        assert "other ranks have finished; still running: rank 1 (host localhost)" in line, line
        assert launcher.wait(30) == 130
