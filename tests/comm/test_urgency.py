"""Works of different urgency: no rank waits for ever for one that another rank holds back."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    "case",
    ["one_rank_waits_for_an_old_work_before_it_calls_urgent_ones", "urgent_works_on_memory_of_earlier_ones"],
)
def test_urgent_works_make_nobody_wait(case: str, transport: str) -> None:
    script = Path(__file__).with_name("urgency_rank.py")
    for text in ranks.run(script, 2, transport=transport, args=[case], timeout=60):
        assert text.strip() == "right"
