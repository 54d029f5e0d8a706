"""Thousands of random operations, many at once, on 4 ranks over 3 overlapping groups: no hang, no wrong value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("random_rank.py")


def check(transport: str, seed: int) -> None:
    outputs = ranks.run(SCRIPT, 4, transport=transport, args=[str(seed), "10000"], timeout=250)
    for counts in map(json.loads, outputs):
        assert counts["compared"] > 4000
        assert counts["most_open"] >= 16
        assert counts["waits_cut_short"] > 0


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_random_operations_on_overlapping_groups(transport: str) -> None:
    check(transport, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_other_schedules(seed: int) -> None:
    check(ranks.TRANSPORTS[seed % 3], seed)
