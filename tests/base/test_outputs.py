"""Files that ranks are asked to write: what is found before they try."""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.base.outputs import objection, summary_file


def test_what_can_be_written_finds_no_objection(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    assert objection(str(tmp_path / "there")) == objection(str(tmp_path / "new")) == ""
    assert objection("/dev/null") == ""


def test_a_pipe_would_make_the_job_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is a pipe" in objection(str(tmp_path / "pipe"))


def test_folders_are_named(tmp_path: Path) -> None:
    assert objection(str(tmp_path)) == "it is a folder"
    assert objection(str(tmp_path / "none" / "x")) == f"there is no folder {tmp_path}/none"


def test_rank_0_writes_the_summary() -> None:
    assert [summary_file(one, rank) for one, rank in (("0", 0), ("1", 0), ("x", 0), ("x", 1))] == [
        None,
        None,
        "x",
        None,
    ]
