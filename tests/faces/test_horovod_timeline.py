"""HOROVOD_TIMELINE begins a timeline of all ranks with `hvd.init`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comm import ranks

RANK = Path(__file__).with_name("horovod_timeline_rank.py")


@pytest.mark.parametrize("variable", ["HOROVOD_TIMELINE", "SLIPSTREAM_TIMELINE"])
def test_a_timeline_begins_with_the_job(tmp_path: Path, variable: str) -> None:
    pytest.importorskip("torch")
    other = {"HOROVOD_TIMELINE": str(tmp_path / "unused")} | {variable: str(tmp_path / "t.json")}
    ranks.run(RANK, 2, env=other)
    events = json.loads((tmp_path / "t.json").read_text())
    names = sorted((event["pid"], event["name"]) for event in events if event.get("cat") == "operation")
    assert {(0, "loss"), (1, "loss")} <= set(names)
    assert not (tmp_path / "unused").exists()


def test_dynamic_means_later(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ranks.run(RANK, 2, args=[str(tmp_path / "t.json")], env={"HOROVOD_TIMELINE": "DYNAMIC"})
    assert json.loads((tmp_path / "t.json").read_text())
