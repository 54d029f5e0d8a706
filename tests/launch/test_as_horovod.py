"""`slipstream run --horovod`: the ranks, and what they start, find slipstream by the name of Horovod."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import slipstream.launch
from launch.test_environment import other
from launch.test_run import run, tag

__all__ = ["other", "tag"]

ON_PATH = Path(slipstream.launch.__file__).parents[1] / "as_horovod" / "on_path"

SCRIPT = """
import os, subprocess, sys
import horovod
from horovod.common.exceptions import HorovodInternalError
child = [sys.executable, "-c", "import horovod; print(horovod.__slipstream__)"]
found = subprocess.run(child, capture_output=True, text=True).stdout.strip()
print(horovod.__version__, found, os.environ.get("THERE"))
import neighbour
"""


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder with an installed Horovod, and with another module."""
    folder = tmp_path / "installed"
    (folder / "horovod").mkdir(parents=True)
    (folder / "horovod" / "__init__.py").write_text("__version__ = '0.1'\n")
    (folder / "horovod" / "__main__.py").write_text("print('the real one')\n")
    (folder / "neighbour.py").touch()
    return folder


@pytest.mark.parametrize("way", ["script", "module"])
def test_here_and_on_other_hosts_before_an_installed_one(
    tag: str, other: Path, real: Path, tmp_path: Path, way: str
) -> None:
    """``other``: a host with an environment of its own; PYTHONPATH is set for all ranks, too."""
    (tmp_path / "train.py").write_text(SCRIPT)
    program = ["-m", "train"] if way == "module" else [str(tmp_path / "train.py")]
    paths = f"PYTHONPATH={real}:{tmp_path}:{Path(slipstream.__file__).parents[1]}"
    hosts = ["-np", "2", "-H", "localhost,node1", "--ssh-command", str(other)]
    code, out, err = run(tag, *hosts, "-e", paths, "--horovod", "--", sys.executable, *program)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["[0] 0.28.1 True None", "[1] 0.28.1 True yes"]


def test_not_unless_it_is_asked_for(tag: str, real: Path) -> None:
    script = "import horovod; print(horovod.__version__)"
    code, out, _ = run(tag, "-np", "1", "-e", f"PYTHONPATH={real}", "--", sys.executable, "-c", script)
    assert (code, out) == (0, "[0] 0.1\n")


def test_a_python_without_slipstream_is_named() -> None:
    command = [sys.executable, "-S", "-c", "import horovod.torch"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(ON_PATH)}, capture_output=True, text=True, check=False
    )
    assert f"slipstream stands in for Horovod here, but {sys.executable} does not have it" in done.stderr


def test_rank_0_says_once_what_became_of_variables(tag: str) -> None:
    script = "import slipstream\nfor _ in range(2): slipstream.init(); slipstream.shutdown()"
    given = ["-e", "HOROVOD_CYCLE_TIME=5", "-e", "HOROVOD_START_TIMEOUT=50", "-e", "HOROVOD_TIMELINE=DYNAMIC"]
    code, _, err = run(tag, "-np", "2", *given, "--", sys.executable, "-c", script)
    assert code == 0
    assert [line.partition(" has no ")[0] for line in err.splitlines()] == [
        "[0] slipstream: rank 0: HOROVOD_CYCLE_TIME=5",
        "[0] slipstream: rank 0: HOROVOD_START_TIMEOUT=50 became SLIPSTREAM_START_TIMEOUT=50",
    ]
