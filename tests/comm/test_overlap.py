"""Memory that overlaps: within a call, and between calls in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("overlap_rank.py")


@pytest.mark.parametrize("n", [2, 3])
def test_inputs_and_outputs_that_overlap_in_part_are_refused(n: int) -> None:
    ranks.run(SCRIPT, n, args=["inputs"])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("case", ["flight", "mixed"])
def test_works_in_flight_on_the_same_memory_act_one_after_another(transport: str, case: str) -> None:
    ranks.run(SCRIPT, 3, transport=transport, args=[case])


def test_works_of_several_groups_in_flight_on_the_same_memory_are_refused() -> None:
    ranks.run(SCRIPT, 2, transport="tcp", args=["groups"])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_messages_of_several_ranks_may_be_received_into_the_same_memory(transport: str) -> None:
    ranks.run(SCRIPT, 3, transport=transport, args=["messages"])
