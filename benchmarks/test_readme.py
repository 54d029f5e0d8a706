"""README.md says what the newest records say, and has no figure of speed that no record backs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import readme

from slipstream.bench.record import newest

PAGE = (readme.ROOT / "README.md").read_text(encoding="utf-8")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def test_the_page_is_current() -> None:
    assert readme.main(["--check"]) == 0, "run: python benchmarks/readme.py"


def test_there_is_no_figure_of_speed_outside_the_table() -> None:
    before, _, rest = PAGE.partition(BEGIN)
    outside = before + rest.partition(END)[2]
    assert re.findall(r"\b\d+(?:\.\d+)?x\b|\b\d+(?:\.\d+)? times\b", outside) == []


def test_where_it_only_matches_stands_beside_where_it_wins() -> None:
    table = PAGE.partition(BEGIN)[2].partition(END)[0]
    (equal,) = [line for line in table.splitlines() if "equal links" in line and "1 MiB to 64 MiB" in line]
    record = newest("all_reduce-lab", readme.RESULTS)
    ratios = [
        size["contenders"]["slipstream"]["ratio"]["gloo"]["value"]
        for size in record["sizes"]
        if size["bytes"] >= 1 << 20
    ]
    assert f"{min(ratios):.2f}x to {max(ratios):.2f}x" in equal
    assert "no faster" in PAGE


def test_the_newest_record_counts(tmp_path: Path) -> None:
    for day in ("2026-01-02", "2026-03-01", "2026-02-03"):
        (tmp_path / f"{day}-lanes-machine.json").write_text(json.dumps({"date": day}))
    assert newest("lanes", tmp_path) == {"date": "2026-03-01"}
    with pytest.raises(FileNotFoundError, match="no record of ddp"):
        newest("ddp", tmp_path)


def test_a_page_that_is_not_current_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\n6.00x\n{END}\nafter\n")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main(["--check"]) == 1
    assert readme.main([]) == 0
    assert readme.main(["--check"]) == 0
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "gloo's time / ours" in text
