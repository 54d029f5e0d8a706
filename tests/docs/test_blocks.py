"""The Python of README and pages, where a block is a whole program: it is run as it stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.commands import ROOT
from docs.stage import environment, make_files


def block(page: str, words: str) -> str:
    """The only block of a page that has these words."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = [one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if words in one]
    return str(found)


def run(folder: Path, script: str, *before: str) -> str:
    (folder / "block.py").write_text(script)
    done = subprocess.run(
        [*before, sys.executable, "block.py"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_training_of_the_readme_learns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    script = block("README.md", "hvd.DistributedOptimizer")
    output = run(tmp_path, script, "slipstream", "run", "-np", "2", "--")
    shares = re.findall(r"([\d.]+)% of its digits are right", output)
    assert len(shares) == 2, output
    assert all(float(share) > 90 for share in shares), shares


def test_the_arrays_of_the_readme_are_summed(tmp_path: Path) -> None:
    script = block("README.md", "numpy.full")
    assert run(tmp_path, script, "slipstream", "run", "-np", "2", "--").count("[3. 3. 3.]") == 2


def test_the_survivors_of_the_page_go_on(tmp_path: Path) -> None:
    script = block("docs/failures.md", ".shrink()")
    dies = "    if step == 500 and slipstream.size() == 3 and slipstream.rank() == 1:\n"
    dies += "        __import__('os')._exit(3)\n"
    script = script.replace("    try:\n", dies + "    try:\n")
    output = run(tmp_path, script, "slipstream", "run", "-np", "3", "--min-np", "2", "--")
    ended = re.findall(r"rank (\d) of 2: \[([\d.]+)", output)
    assert sorted(ended) == [("0", ended[0][1]), ("1", ended[0][1])], output
    assert float(ended[0][1]) > 0.99


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2")
def test_the_lab_of_its_page_comes_up(tmp_path: Path) -> None:
    make_files(tmp_path)
    run(tmp_path, block("docs/lab.md", "from slipstream.lab import Lab"))
