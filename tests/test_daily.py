"""The table of daily variants names tests that there are: else a test would not run daily, and nobody would know."""

from __future__ import annotations

from pathlib import Path

import pytest

import daily


def test_the_table_names_files_that_there_are() -> None:
    root = Path(__file__).parents[1]
    assert [file for file in daily.DAILY if not (root / file).is_file()] == []


def test_the_table_names_variants_that_there_are(pytestconfig: pytest.Config) -> None:
    found = pytestconfig.stash[daily.FOUND]
    files = {file for file, _ in found}  # those that this run reads: the others need what is not installed
    for file in daily.DAILY.keys() & files:
        for function, variants in daily.DAILY[file].items():
            missing = set(variants) - found.get((file, function), set())
            assert not missing, f"{file}::{function} has no variant {missing}"
            assert variants or found.get((file, function)), f"{file} has no {function}"


@pytest.mark.parametrize(
    ("variant", "runs"), [("all_reduce", True), ("gather", True), ("barrier", False), ("", False)]
)
def test_variants_that_are_not_listed_are_left_out(variant: str, runs: bool) -> None:
    file = "tests/bench/test_measurement.py"
    assert daily.is_daily(file, "test_every_collective_is_measured_and_right", variant) == runs


def test_a_test_that_is_not_listed_runs() -> None:
    assert daily.is_daily("tests/bench/test_measurement.py", "test_of_no_table", "")
