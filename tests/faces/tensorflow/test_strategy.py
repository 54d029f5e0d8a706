"""`tf.distribute` on slipstream: one worker and two walk down the same loss curve, shares, reductions, a lost rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comm import ranks

pytest.importorskip("tensorflow")
pytest.importorskip("keras")
pytest.importorskip("sklearn")

SCRIPT = Path(__file__).parent / "strategy_rank.py"


def outputs(mode: str, size: int) -> list[str]:
    return ranks.run(SCRIPT, size, args=[mode], new=mode == "rows")  # one ends as programs of users do


@pytest.mark.parametrize("mode", ["graph", pytest.param("eager", marks=pytest.mark.slow)])
def test_one_worker_and_two_learn_the_same(mode: str) -> None:
    def told(size: int) -> list[dict[str, Any]]:
        return [json.loads(ranks.marked("told ", output)) for output in outputs(mode, size)]

    (alone,) = told(1)
    first, second = told(2)
    assert first == second
    assert first["loss"] == pytest.approx(alone["loss"], rel=1e-3)
    assert first["sum"] == pytest.approx(alone["sum"], rel=1e-3)
    assert first["accuracy"][-1] > 0.9
    assert alone["loss"][-1] < alone["loss"][0] / 2


@pytest.mark.parametrize(("mode", "size"), [("rows", 2), ("reductions", 3), ("gathers", 2), ("gathers", 3)])
def test_shares_and_reductions(mode: str, size: int) -> None:
    for output in outputs(mode, size):
        assert output.endswith("done\n")


def test_a_lost_rank_ends_fit_with_its_name() -> None:
    first, _ = outputs("lost", 2)
    assert "rank 1" in ranks.marked("raised ", first)


def test_it_comes_after_init() -> None:
    (output,) = outputs("early", 1)
    assert "init" in ranks.marked("raised ", output)
