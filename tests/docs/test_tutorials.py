"""Tutorials and how-to pages: files are written as they stand, commands run in order, and their output is compared.

A block with a title is a file. A block ```sh is typed by the reader; behind a comment "fails" it ends with an error. A
block ```text shows some lines of the output of the command above it; numbers may differ.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.commands import ROOT, TUTORIALS
from docs.stage import Stage
from slipstream.lab import Lab

PAGES = [path for folder in TUTORIALS for path in sorted((ROOT / folder).glob("*.md"))]
BLOCK = re.compile(r"(<!-- fails -->\n)?^( *)```(\w+)([^\n]*)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)
CAN_MAKE_LABS = os.geteuid() == 0 and shutil.which("tc") is not None

# Commands that need what a test cannot have. Their options are judged by test_commands.
NOT_RUN = (
    (r"ssh node2 true", "the hosts of a lab are reached by a stand-in for ssh"),
    (r".*--ssh-command \"ssh -p 2222\".*", "the hosts of a lab have no ssh server there"),
    (r"docker run .*", "needs docker"),
)
# A Slurm cluster, as far as a script sees one: `sbatch` runs a script, and `srun` starts its two tasks.
SBATCH = """#!/bin/sh
export SLURM_JOB_ID=$$
exec bash "$1"
"""
SRUN = """#!/bin/sh
export SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_TASKS=2
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" &
SLURM_PROCID=0 SLURM_LOCALID=0 "$@"
code=$?
wait
exit $code
"""


@dataclass
class Typed:
    """Commands of one block, which fail or not, and lines of their output."""

    text: str
    fails: bool
    shown: list[str]


def dedented(indent: str, text: str) -> str:
    return "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


def read(page: Path) -> tuple[dict[str, str], list[Typed]]:
    """The files and the commands of a page."""
    files, typed = {}, []
    for fails, indent, language, rest, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        text = dedented(indent, body)
        title = re.search(r'title="([^"]+)"', rest)
        if title:
            files[title[1]] = text
        elif language == "sh":
            typed.append(Typed(text, bool(fails), []))
        elif language == "text" and typed:
            typed[-1].shown += text.splitlines()
    return files, typed


def reason_not_to_run(text: str) -> str:
    return next((reason for pattern, reason in NOT_RUN if re.fullmatch(pattern, text.strip())), "")


def pattern_of(line: str) -> str:
    """A line of output, with any number in the place of each of its numbers."""
    return r"\d+(?:\.\d+)?".join(re.escape(part) for part in re.split(r"\d+(?:\.\d+)?", line))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the programs of Slurm first in the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    return tmp_path


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab | None]:
    if not CAN_MAKE_LABS:
        yield None
        return
    with Lab(["node1", "node2"], rate="1gbit") as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_a_page_works_as_it_stands(page: Path, folder: Path, lab: Lab | None) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    files, typed = read(page)
    for name, text in files.items():
        (folder / name).write_text(text)
    hosts = lab if re.search(r"\bnode\d", page.read_text(encoding="utf-8")) else None
    for command in typed:
        if reason_not_to_run(command.text):
            continue
        if not CAN_MAKE_LABS and re.search(r"\bnode\d|slipstream lab|--hostfile", command.text):
            pytest.skip("other hosts are those of a lab, which needs root and iproute2")
        script = f"export PATH={folder}/bin:$PATH HOME={folder}; {command.text}"
        stage = Stage(folder, hosts)
        code, output = stage.run(script)
        assert (code != 0) is command.fails, output
        for line in command.shown:
            assert re.search(pattern_of(line), output), output


def test_pages_have_files_and_commands() -> None:
    assert len(PAGES) >= 11
    for page in PAGES:
        files, typed = read(page)
        assert files, page
        assert typed, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_scripts_of_a_page_are_read_by_their_interpreter(page: Path) -> None:
    """Also where nothing can be run."""
    files, typed = read(page)
    for name, text in files.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
    scripts = [text for name, text in files.items() if name.endswith((".sh", ".sbatch"))]
    for text in [*scripts, *(one.text for one in typed)]:
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_reasons_are_for_commands_that_there_are() -> None:
    texts = [one.text.strip() for page in PAGES for one in read(page)[1]]
    assert [pattern for pattern, _ in NOT_RUN if not any(re.fullmatch(pattern, text) for text in texts)] == []


def test_numbers_of_the_output_may_differ() -> None:
    assert re.search(pattern_of("[0] epoch 1: loss 0.7022"), "[1] epoch 10: loss 1.5")
    assert not re.search(pattern_of("[0] epoch 1: loss 0.7022"), "[0] epoch 1: lost 0.7022")
