"""What `slipstream top` shows of snapshots that are made up, and how it finds jobs. test_metrics.py asks real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from observe.snapshots import link, snapshot, steps
from slipstream.cli.main import main
from slipstream.cli.top import rows, table
from slipstream.observe import metrics_jobs
from slipstream.observe.metrics_jobs import Entry, found_jobs


def test_rates_are_those_since_the_last_look() -> None:
    before = [snapshot(0, links=[link(1, 1e6, sent=1000)], time=10.0)]
    (row,) = rows([snapshot(0, links=[link(1, 1e6, sent=5000)], time=12.0)], before)
    assert (row["send"], row["recv"], row["lanes"]) == (2000, 2000, 2)
    assert (row["compute"], row["exposed"]) == (0.5, 0.5)
    (row,) = rows([snapshot(0)], [None])
    assert row["send"] == 0


def test_the_straggler_and_those_that_do_not_answer_are_marked() -> None:
    slow = snapshot(2, steps=steps(0.1, 0.0))
    found = rows([snapshot(0), None, slow], [None, None, None])
    assert [row.get("straggler") for row in found] == ["", None, "compute"]
    cells = table(found)
    assert "no answer" in cells[2]
    assert "<- straggler (compute)" in cells[3]
    assert len({len(line) for line in cells}) == 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "slipstream").mkdir(mode=0o700)
    return tmp_path / "slipstream"


def entry_of(pid: int, name: str) -> Entry:
    start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    places = ((("127.0.0.1",), 1),)
    here = metrics_jobs._processes()
    return Entry("train", "node1", 0, pid, start, here, 1.0, f"python {name}", name, "00" * 32, False, places)


def put(folder: Path, entry: Entry, mode: int = 0o600) -> Path:
    file = folder / f"{entry.name}-{entry.rank}.json"
    file.write_text(json.dumps(asdict(entry)))
    file.chmod(mode)
    return file


def test_jobs_are_found_once_each_while_their_process_lives(folder: Path) -> None:
    entry = entry_of(os.getpid(), "a")
    put(folder, entry)
    put(folder, replace(entry, rank=4))  # the first rank of another host
    put(folder, replace(entry, name="b", began=2.0))
    open_to_others = put(folder, replace(entry, name="c"), 0o644)
    broken = folder / "d.json"
    broken.write_text("{")
    broken.chmod(0o600)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        ended = put(folder, entry_of(process.pid, "e"))
        assert "e" in {one.name for one in found_jobs()}
    assert [(one.name, one.rank) for one in found_jobs()] == [("b", 0), ("a", 0)]
    assert not ended.exists()
    assert open_to_others.exists()


def test_entries_of_other_containers_stay(folder: Path) -> None:
    """No process here has the number and the start of one that runs there."""
    entry = replace(entry_of(os.getpid(), "a"), start=1)
    boot, namespace = entry.processes.split()
    others = [
        put(folder, replace(entry, name="b", processes=f"{boot} pid:[1]")),
        put(folder, replace(entry, name="c", processes=f"another-boot {namespace}")),
    ]
    gone = put(folder, entry)
    assert found_jobs() == []
    assert [file.exists() for file in (*others, gone)] == [True, True, False]


def test_what_is_wrong_is_said(folder: Path) -> None:
    def said(*args: str) -> str:
        done = CliRunner().invoke(main, ["top", *args])
        assert done.exit_code != 0
        return done.output

    assert "no job of this user" in said("--once")
    assert "--json needs --once" in said("--json")
    entry = entry_of(os.getpid(), "a")
    put(folder, entry)
    put(folder, replace(entry, name="b"))
    assert f"--job {os.getpid()}" in said("--once")
    assert "no job 'other'" in said("--job", "other")


def test_a_summary_goes_to_json_files_alone() -> None:
    done = CliRunner().invoke(main, ["run", "-np", "1", "--summary", "python", "train.py"])
    assert done.exit_code == 2
    assert "put -- before the command" in done.output
