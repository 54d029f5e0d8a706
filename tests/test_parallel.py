"""Several tests at a time: groups stay in one process, and who wants to be alone is alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import parallel

TESTS = """
import os, time
import pytest

def note(what):
    begin = time.monotonic()
    time.sleep(0.05)  # long enough to meet another
    with open("log", "a") as log:
        log.write(f"{what} {os.getpid()} {begin} {time.monotonic()}\\n")

@pytest.mark.parametrize("number", range(6))
def test_of_a_group(number):
    note("group")

@pytest.mark.alone
@pytest.mark.parametrize("number", range(4))
def test_alone(number):
    note("alone")

@pytest.mark.parametrize("number", range(8))
def test_of_none(number):
    note("none")
"""


def test_groups_stay_together_and_alone_is_alone(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    shutil.copy(Path(parallel.__file__), tmp_path / "parallel.py")
    (tmp_path / "conftest.py").write_text(
        "import parallel\nparallel.GROUPS = {'one': ('test_it.py::test_of_a_group',)}\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(parallel)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert len(ran) == 18
    assert len({process for what, process, *_ in ran if what == "group"}) == 1
    spans = [(what, float(begin), float(end)) for what, _, begin, end in ran]
    for alone in [span for span in spans if span[0] == "alone"]:
        beside = [span for span in spans if span[1] < alone[2] and alone[1] < span[2]]
        assert beside == [alone]


def test_every_group_has_tests() -> None:
    root = Path(parallel.__file__).parents[1]
    for names in parallel.GROUPS.values():
        for name in names:
            assert list(root.glob(f"{name.partition('::')[0]}*")), name
