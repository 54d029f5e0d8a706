"""The way of a gradient as docs/architecture.md draws it, and the walks of CONTRIBUTING.md, against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.commands import ROOT
from docs.stage import Stage

TEXT = (
    (ROOT / "docs" / "architecture.md")
    .read_text()
    .partition("\n## The way of a gradient\n")[2]
    .partition("\n## ")[0]
)
PICTURE = TEXT.split("```")[1]
FILES = re.findall(r"^ *([\w/]+\.(?:py|cpp)) ", PICTURE, re.MULTILINE)


def test_no_file_comes_twice() -> None:
    assert len(FILES) > 20
    assert len(set(FILES)) == len(FILES)


def test_every_file_exists_and_all_are_counted() -> None:
    homes = {".py": ROOT / "src" / "slipstream", ".cpp": ROOT / "native"}
    assert [name for name in FILES if not (homes[Path(name).suffix] / name).exists()] == []
    python = sum(name.endswith(".py") for name in FILES)
    assert f"{len(FILES)} files: {python} of Python and {len(FILES) - python} of C++" in TEXT


def test_python_runs_the_files_that_are_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    named = {name for name in [*FILES, *re.findall(r"`([\w/]+\.py)`", TEXT)] if not name.startswith("tests/")}
    script = Path(__file__).with_name("step_rank.py")
    code, output = Stage(tmp_path, None).run(f"slipstream run -np 2 --no-prefix -- python {script}")
    assert code == 0, output
    ran = {name for name in output.split() if name.endswith(".py")}
    assert ran == {name for name in named if name.endswith(".py")}


def test_walks_for_contributors_are_short() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    walks = re.findall(
        r"\n## The way of (.*?)\n(.*?)\n## ", text.replace("\n## The way", "\n## \n## The way"), re.DOTALL
    )
    assert len(walks) == 2
    for name, walk in walks:
        steps = re.findall(r"^\d+\. .*$", walk, re.MULTILINE)
        named = [re.findall(r"`((?:src|native)/[\w/.]+)`", step)[0] for step in steps]
        assert 1 < len(named) <= 12, name
        assert [path for path in named if not (ROOT / path).exists()] == []
