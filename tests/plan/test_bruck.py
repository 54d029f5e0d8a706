"""Bruck's all-gather: few rounds, few messages, and no more bytes than a ring."""

from __future__ import annotations

import pytest

from plan.reference import plans_of
from slipstream.plan.order import PlanError, prove
from slipstream.plan.registry import build
from slipstream.plan.steps import Kind, Plan


def test_one_rank_sends_nothing() -> None:
    assert [step.kind for step in build("all_gather", "bruck", 0, 1).steps] == [Kind.COPY]


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


@pytest.mark.parametrize("size", range(2, 65))
def test_a_send_waits_for_exactly_what_brings_its_blocks(size: int) -> None:
    for rank in range(size):
        steps = build("all_gather", "bruck", rank, size).steps
        came_with = {
            block: index
            for index, step in enumerate(steps)
            if step.kind is not Kind.SEND
            for block in range(step.block, step.block + step.count)
        }
        for step in steps:
            sent = range(step.block, step.block + step.count) if step.kind is Kind.SEND else ()
            assert set(step.after) == {came_with[block] for block in sent}


@pytest.mark.parametrize("size", [3, 6, 7])
def test_every_wait_is_needed(size: int) -> None:
    plans = plans_of("all_gather", "bruck", size)
    for rank, plan in enumerate(plans):
        for index, step in enumerate(plan.steps):
            for gone in step.after:
                weaker = step._replace(after=tuple(i for i in step.after if i != gone))
                steps = (*plan.steps[:index], weaker, *plan.steps[index + 1 :])
                changed = Plan("all_gather", "wrong", rank, size, size, steps)
                with pytest.raises(PlanError, match="race"):
                    prove([*plans[:rank], changed, *plans[rank + 1 :]], in_place=False)
