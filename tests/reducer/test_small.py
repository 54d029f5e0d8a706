"""Small all-reduces through real reducers, on loopback: right values, whatever becomes of a reducer."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks
from reducer.test_job import environment, lose_one, reducers

RANK = Path(__file__).with_name("small_rank.py")
SELDOM = [
    ("one", "stop"),
    ("many", "kill"),
    ("staggered", "stop"),
]  # how calls are made, and how a reducer is lost


@pytest.mark.parametrize(
    ("n", "k"), [(2, 1), (2, 3), (3, 1), (4, 3), pytest.param(8, 3, marks=pytest.mark.slow)]
)
def test_values(tmp_path: Path, n: int, k: int) -> None:
    with reducers(tmp_path, k) as services:
        texts = ranks.run(RANK, n, transport="tcp", args=["values"], env=environment(services))
        assert texts == [""] * n


def test_nothing_to_add(tmp_path: Path) -> None:
    with reducers(tmp_path, 1) as services:
        assert ranks.run(RANK, 2, transport="tcp", args=["empty"], env=environment(services)) == [""] * 2


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 3), (4, 1)])
@pytest.mark.parametrize("what", ["scaled", "asynchronous", "others", "flight"])
def test_scaling_and_many_at_once(tmp_path: Path, what: str, n: int, k: int) -> None:
    with reducers(tmp_path, k) as services:
        texts = ranks.run(RANK, n, transport="tcp", args=[what], env=environment(services))
        assert texts == [""] * n


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("one", "kill"),
        ("many", "stop"),
        ("staggered", "kill"),
        *(pytest.param(*both, marks=pytest.mark.slow) for both in SELDOM),
    ],
)
@pytest.mark.parametrize(
    ("n", "k", "lost"),
    [pytest.param(2, 1, 0, marks=pytest.mark.slow), pytest.param(3, 2, 0, marks=pytest.mark.slow), (3, 2, 1)],
)
def test_a_reducer_is_lost_and_comes_back(
    tmp_path: Path, n: int, k: int, lost: int, mode: str, how: str
) -> None:
    """The second reducer has a part of the larger ones alone."""
    lose_one(tmp_path, RANK, ["loss", mode], n, k, lost, how)
