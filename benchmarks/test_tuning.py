"""`tuning.py`: what it says of a record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import tuning

_HEAD = {
    "date": "2026-11-26",
    "machine": {"cpu": "some", "cores": 2, "memory_gib": 4, "kernel": "6.1", "load_1min": 0.1},
}


def found(**changes: Any) -> dict[str, Any]:
    """What a network's last job found."""
    fixed = {"ring, 1 lane": [0.001, 5], "ring, 2 lanes": [0.00102, 5], "ring, 4 lanes": [0.0005, 1]}
    usual = {"settled": 40, "chosen": "ring, 2 lanes", "fixed": fixed, "steps": [0.01] * 50}
    return {**usual, "pairs": [[1.0, 1.02], [1.0, 0.9], [2.0, 2.02]], **changes}


def test_a_choice_is_compared_with_the_best_setting_that_had_turns() -> None:
    row = tuning.row("fast", found())
    assert row[2:] == ("1.02 ms", "ring, 1 lane", "1 ms", "98 %", "40", "+1 %")


@pytest.mark.parametrize(
    ("changes", "column", "text"),
    [
        ({"fixed": {"ring, 1 lane": [0.9, 5], "ring, 2 lanes": [1.0, 5]}}, 5, "90 % (95 wanted)"),
        ({"settled": None}, 6, "more than 50"),
        ({"pairs": [[1.0, 1.1]]}, 7, "+10 % (3 at most)"),
    ],
)
def test_what_is_missed_is_said(changes: dict[str, Any], column: int, text: str) -> None:
    assert tuning.row("fast", found(**changes))[column] == text


def test_the_page_has_a_line_for_each_network() -> None:
    page = tuning.page({**_HEAD, "fast": found(), "equal": found()})
    assert [line.split("|")[1].strip() for line in page.splitlines() if "ring" in line] == ["equal", "fast"]
