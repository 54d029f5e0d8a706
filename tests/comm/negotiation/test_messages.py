"""What a round of negotiation costs."""

from __future__ import annotations

import pytest

import slipstream
from slipstream.base.errors import Timeout
from slipstream.comm.collectives.work import AGAIN
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
    """What ends after it has been waited for twice."""

    def __init__(self) -> None:
        self.waited = 0

    def done(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> None:
        self.waited += 1
        if self.waited < 2:
            raise Timeout(f"it has not ended within 10 s and goes on{AGAIN}. It waits for rank 1")


def test_a_warning_asks_for_nothing_that_only_the_library_can_do(caplog: pytest.LogCaptureFixture) -> None:
    await_others(Slow(), lambda: "this rank waits")
    (record,) = caplog.records
    assert (
        record.getMessage()
        == "this rank waits: it has not ended within 10 s and goes on. It waits for rank 1"
    )


@pytest.mark.parametrize("nbytes", [512, 1 << 20])
def test_messages_travel_so_whatever_their_size(nbytes: int) -> None:
    slipstream.init(rank=0, size=1)
    try:
        group = slipstream.world()
        assert messages_of(group).compiled("all_gather", nbytes).operation == f"all_gather/{ALGORITHM}"
        assert group.compiled("all_gather", nbytes).operation != f"all_gather/{ALGORITHM}"
    finally:
        slipstream.shutdown()
