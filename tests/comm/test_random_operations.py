"""Thousands of random operations, many at once, on 4 ranks over 3 overlapping groups: no hang, no wrong value."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("random_rank.py")


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_random_operations_on_overlapping_groups(transport: str) -> None:
    for output in ranks.run(SCRIPT, 4, transport=transport, args=["1", "10000"], timeout=250):
        assert output.startswith("10000 operations"), output


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_other_schedules(seed: int) -> None:
    ranks.run(SCRIPT, 4, transport=ranks.TRANSPORTS[seed % 3], args=[str(seed), "10000"], timeout=250)
