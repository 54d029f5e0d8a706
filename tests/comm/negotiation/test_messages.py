"""What a round of negotiation costs."""

from __future__ import annotations

import pytest

import slipstream
from slipstream.comm.negotiation.messages import ALGORITHM, messages_of
from slipstream.plan.registry import build
from slipstream.plan.steps import Kind


@pytest.mark.parametrize("size", range(2, 65))
def test_a_rank_sends_two_messages_at_most_for_each_doubling_of_the_ranks(size: int) -> None:
    doublings = (size - 1).bit_length()
    for rank in range(size):
        steps = build("all_gather", ALGORITHM, rank, size).steps
        assert sum(step.kind is Kind.SEND for step in steps) <= 2 * doublings


@pytest.mark.parametrize("nbytes", [512, 1 << 20])
def test_messages_travel_so_whatever_their_size(nbytes: int) -> None:
    slipstream.init(rank=0, size=1)
    try:
        group = slipstream.world()
        assert messages_of(group).compiled("all_gather", nbytes).operation == f"all_gather/{ALGORITHM}"
        assert group.compiled("all_gather", nbytes).operation != f"all_gather/{ALGORITHM}"
    finally:
        slipstream.shutdown()
