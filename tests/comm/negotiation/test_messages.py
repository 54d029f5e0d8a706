"""What a round of negotiation costs."""

from __future__ import annotations

import pytest

import slipstream
from slipstream.base.errors import Timeout
from slipstream.comm.negotiation.messages import ALGORITHM, await_others, messages_of
from slipstream.plan.registry import build
from slipstream.plan.steps import Kind


@pytest.mark.parametrize("size", range(2, 65))
def test_a_rank_sends_two_messages_at_most_for_each_doubling_of_the_ranks(size: int) -> None:
    doublings = (size - 1).bit_length()
    for rank in range(size):
        steps = build("all_gather", ALGORITHM, rank, size).steps
        assert sum(step.kind is Kind.SEND for step in steps) <= 2 * doublings


class Slow:
    """What ends in its second wait, or has ended by then."""

    def __init__(self, ended: bool = False) -> None:
        self.ended = ended
        self.titles: list[str] = []
        self.waits: list[float | None] = []

    def done(self) -> bool:
        return self.ended

    def wait(self, timeout: float | None = None) -> None:
        self.waits.append(timeout)
        if len(self.waits) < 2:
            raise Timeout("it has not ended")

    def entitle(self, title: str) -> None:
        self.titles.append(title)


def test_what_takes_long_is_known_by_its_title() -> None:
    slow = Slow()
    await_others(slow, lambda: "all_reduce 'x'")
    assert slow.titles == ["all_reduce 'x'"]
    assert slow.waits[1] is None


def test_what_has_ended_meanwhile_needs_no_title() -> None:
    ended = Slow(ended=True)
    await_others(ended, lambda: "all_reduce 'x'")
    assert ended.titles == []
    assert len(ended.waits) == 2  # the second one raises its error


@pytest.mark.parametrize("nbytes", [512, 1 << 20])
def test_messages_travel_so_whatever_their_size(nbytes: int) -> None:
    slipstream.init(rank=0, size=1)
    try:
        group = slipstream.world()
        assert messages_of(group).compiled("all_gather", nbytes).operation == f"all_gather/{ALGORITHM}"
        assert group.compiled("all_gather", nbytes).operation != f"all_gather/{ALGORITHM}"
    finally:
        slipstream.shutdown()
