"""`slipstream run --horovod`: the ranks, and what they start, find slipstream by the name of Horovod."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import slipstream.launch
from launch.test_environment import other
from launch.test_run import run, tag
from slipstream.launch.no_horovod import horovod_cure

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


@pytest.mark.parametrize(
    ("options", "flags", "beside", "cure"),
    [
        (
            [],
            [],
            "",
            "add --horovod before --, and the script's Horovod is slipstream: slipstream run --horovod",
        ),
        (["--horovod"], ["-I"], "", "python -I ignores PYTHONPATH, by which"),
        (
            ["--horovod"],
            [],
            "horovod/__init__.py",
            "{folder}/horovod hides the package horovod of slipstream",
        ),
    ],
    ids=["not asked for", "isolated", "hidden"],
)
def test_no_horovod_has_a_cure(
    tag: str, tmp_path: Path, options: list[str], flags: list[str], beside: str, cure: str
) -> None:
    (tmp_path / "train.py").write_text("import horovod.torch\n")
    if beside:
        (tmp_path / beside).parent.mkdir()
        (tmp_path / beside).touch()
    code, _, err = run(tag, "-np", "1", *options, "--", sys.executable, *flags, str(tmp_path / "train.py"))
    assert code == 1
    assert "No module named 'horovod" in err
    assert err.splitlines()[-1].startswith(f"slipstream: {cure.format(folder=tmp_path)}"), err


@pytest.mark.parametrize(
    ("command", "cure"),
    [
        ("python -uE train.py", "python -E ignores PYTHONPATH"),
        ("python3.11 -X importtime -W Ignore train.py", "{folder}/horovod.py hides"),
        ("python -m train", "{folder}/horovod.py hides"),
        ("python deeper/train.py -I", "something hides the package horovod"),
        ("bash train.sh", "something hides the package horovod"),
    ],
)
def test_what_hides_it(tmp_path: Path, command: str, cure: str) -> None:
    (tmp_path / "horovod.py").touch()
    error = "ModuleNotFoundError: No module named 'horovod.torch'; 'horovod' is not a package"
    said = horovod_cure(error, command.split(), tmp_path, asked=True)
    assert said.startswith(cure.format(folder=tmp_path))
    assert horovod_cure(error, command.split(), tmp_path, asked=False).startswith("add --horovod")
    assert horovod_cure("ValueError: x", command.split(), tmp_path, asked=True) == ""


def test_a_function_of_slipstream_run_has_no_options() -> None:
    command = ["python", "-m", "slipstream.launch.calls", "rank", "x"]
    assert horovod_cure("ModuleNotFoundError: No module named 'horovod'", command, None, asked=False) == ""


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
