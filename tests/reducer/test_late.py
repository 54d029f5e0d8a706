"""Time-outs of operations that have waited in line beside reducers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from comm import ranks
from reducer.test_job import environment, reducers

RANK = Path(__file__).with_name("late_rank.py")


@pytest.mark.parametrize("count", [pytest.param(100, marks=pytest.mark.slow), 400_000])
def test_the_time_of_an_operation_runs_from_its_call_also_after_it_left_the_line(
    tmp_path: Path, count: int
) -> None:
    with reducers(tmp_path, 1) as services:
        texts = ranks.run(RANK, 2, transport="tcp", args=[str(count)], env=environment(services))
        error = next(line for line in texts[0].splitlines() if line.startswith("error: "))
        # "for the turn of": the other rank came so late that it was in line until then
        assert re.match(
            r"error: (the job has failed before: )?rank 0 has waited \S+ s "
            r"(in|for the turn of) all_reduce\(name='behind'",
            error,
        ), texts[0]
