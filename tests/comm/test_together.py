"""Wrong arguments of calls that are several operations: nobody waits for a rank that gave up."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("together_rank.py")


@pytest.mark.parametrize("case", ["widths", "before", "scatter"])
def test_an_error_of_all_ranks_ends_nothing(case: str) -> None:
    for text in ranks.run(SCRIPT, 3, args=[case], timeout=60):
        assert text.startswith("ValueError: "), text
        assert "goes on" in text


@pytest.mark.parametrize("case", ["all_gather", "gather", "all_to_all"])
def test_an_error_of_one_rank_reaches_all(case: str) -> None:
    texts = ranks.run(SCRIPT, 3, args=[case], timeout=60)
    assert texts[1].startswith("ValueError: "), texts[1]
    reason = texts[1].splitlines()[0]
    for text in (texts[0], texts[2]):
        assert f"rank 1 gave up inside {case} ({reason})" in text, text
    assert all("has ended: " in text for text in texts), texts
