"""Whether a host has more ranks than processors: all ranks have to find the same, wherever each may run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("crowded_rank.py")


@pytest.mark.parametrize(
    ("own", "crowded"),
    [((0, 1), [False, False]), ((0, 0), [True, True]), ((0, 1, 0), [True, False]), ((1, 1, 0), [True, True])],
)
def test_the_processors_of_all_ranks_of_a_host_count(own: tuple[int, ...], crowded: list[bool]) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two processors")
    args = [",".join(str(cpus[which]) for which in own)]
    for rank, said in enumerate(ranks.run(SCRIPT, len(own), args=args)):
        assert said.strip() == str(crowded[: 2 if rank < 2 else 1])
