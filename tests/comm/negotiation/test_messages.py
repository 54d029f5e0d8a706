"""What a round of negotiation costs."""

from __future__ import annotations

import pytest

from slipstream.comm.negotiation.messages import ALGORITHM
from slipstream.plan.registry import build
from slipstream.plan.steps import Kind


@pytest.mark.parametrize("size", range(2, 65))
def test_a_rank_sends_two_messages_at_most_for_each_doubling_of_the_ranks(size: int) -> None:
    doublings = (size - 1).bit_length()
    for rank in range(size):
        steps = build("all_gather", ALGORITHM, rank, size).steps
        assert sum(step.kind is Kind.SEND for step in steps) <= 2 * doublings
