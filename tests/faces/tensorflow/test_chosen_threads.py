"""Threads and devices that a program chooses after `hvd.init`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from faces.tensorflow.chosen_threads_rank import THREADS
from faces.tensorflow.conftest import QUIET

PROGRAM = Path(__file__).with_name("chosen_threads_rank.py")


@pytest.mark.parametrize("way", ["function", "session"])
@pytest.mark.parametrize("graphs", ["native", "negotiated"])
def test_a_program_chooses_after_init(way: str, graphs: str) -> None:
    env = os.environ | QUIET | {"SLIPSTREAM_TENSORFLOW_GRAPHS": graphs}
    found = subprocess.run(
        [sys.executable, str(PROGRAM), way], env=env, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    (threads,) = re.findall(r"threads: (\d+)", found.stdout)
    assert int(threads) > THREADS
