"""Ranks that wait for each other in different places learn of both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from comm import ranks

SCRIPT = Path(__file__).with_name("apart_rank.py")


@pytest.mark.parametrize("steps_before", [0, 2, 80])  # with another operation in 80 steps the order is locked
def test_an_operation_on_one_rank_and_a_step_on_the_other(steps_before: int) -> None:
    texts = ranks.run(SCRIPT, 2, args=[str(steps_before)], env={"SLIPSTREAM_TIMEOUT": "5"})
    for text in (output.rpartition("error: ")[2] for output in texts):
        assert "allreduce 'loss'" in text, text
        assert "the step of an optimizer" in text or "the exchange of gradients" in text, text
        assert not re.search(r"all_gather|all_reduce\(|negotiation|#\d", text), text
