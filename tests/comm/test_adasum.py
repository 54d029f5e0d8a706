"""Adasum of vectors against its definition, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("adasum_rank.py")


@pytest.mark.parametrize(("n", "transport"), [(1, "shm"), (2, "tcp"), (3, "shm"), (5, "mixed"), (8, "shm")])
def test_vectors_become_what_the_definition_says(n: int, transport: str) -> None:
    for text in ranks.run(SCRIPT, n, transport=transport, args=["values"], timeout=120):
        assert "done" in text


def test_hosts_are_averaged_where_the_hierarchy_is_on() -> None:
    env = {"SLIPSTREAM_HIERARCHY": "on"}
    for text in ranks.run(SCRIPT, 5, transport="mixed", args=["values"], env=env, timeout=120):
        assert "done" in text


@pytest.mark.parametrize("n", [4, 6])
def test_odd_vectors_spoil_no_others(n: int) -> None:
    for text in ranks.run(SCRIPT, n, args=["odd"], timeout=60):
        assert "done" in text


def test_different_vectors_are_a_mismatch_on_all_ranks() -> None:
    for text in ranks.run(SCRIPT, 3, args=["differ"], timeout=60):
        said = ranks.marked("differ: ", text)
        assert "x of rank" in said


def test_a_lost_rank_ends_it_on_all_ranks() -> None:
    for number, text in enumerate(ranks.run(SCRIPT, 3, args=["break"], timeout=60)):
        assert number == 1 or "rank 1" in ranks.marked("lost: ", text)


def test_the_error_has_its_name() -> None:
    said = ranks.marked("lost: ", ranks.run(SCRIPT, 2, args=["break amid"], timeout=60)[0])
    assert "rank 0 still waits in the gradients" in said, said
