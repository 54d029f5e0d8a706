"""Bruck's all-gather: few rounds, few messages, and no more bytes than a ring."""

from __future__ import annotations

import pytest

from slipstream.plan.registry import build
from slipstream.plan.steps import Kind


@pytest.mark.parametrize("size", range(2, 65))
def test_rounds_messages_and_blocks(size: int) -> None:
    rounds = (size - 1).bit_length()
    for rank in range(size):
        steps = build("all_gather", "bruck", rank, size).steps
        sends = [step for step in steps if step.kind is Kind.SEND]
        received = [
            block
            for step in steps
            if step.kind is Kind.RECV
            for block in range(step.block, step.block + step.count)
        ]
        assert len({step.peer for step in sends}) == rounds
        assert rounds <= len(sends) <= 2 * rounds
        assert sorted(received) == [block for block in range(size) if block != rank]
        assert sum(step.count for step in sends) == size - 1
