"""Time-outs of operations that wait for their turn."""

from __future__ import annotations

import numpy as np
import pytest

import slipstream
from comm.sessions import ranks


def test_a_work_that_has_not_begun_names_itself_and_what_is_first() -> None:
    with ranks(2) as (rank, _):
        arrays = [np.ones(1 << 18, dtype=np.float32) for _ in range(40)]
        works = [rank.all_reduce(array) for array in arrays]  # the other rank does not come
        said = "all_reduce(float32, 262144 elements, op=sum) "
        assert works[0].waits().startswith(f"{said}#0 has waited ")
        for number in (2, 39):
            text = works[number].waits()
            assert text.startswith(f"{said}#{number} of the group of ranks 0, 1, called "), text
            assert (
                f" ago, has not begun; first this rank waits in {said}#0 of the group of ranks 0, 1 for rank 1"
                in text
            )


def test_a_work_that_has_ended_says_nothing() -> None:
    with ranks(2) as both:
        for _ in range(20):
            arrays = [np.ones(1 << 12, dtype=np.float32) for _ in both]
            works = [rank.all_reduce(array) for rank, array in zip(both, arrays, strict=True)]
            text = works[0].waits()
            assert not text or "has waited" in text
            for work in works:
                assert work.wait(30)
                assert work.waits() == ""


def test_the_time_of_an_operation_runs_while_it_waits_behind_others() -> None:
    with ranks(2) as (rank, _):
        arrays = [np.ones(1 << 18, dtype=np.float32) for _ in range(4)]
        works = [rank.all_reduce(array) for array in arrays[:3]]  # the other rank does not come
        works.append(rank.all_reduce(arrays[3], timeout=1.0))
        with pytest.raises(slipstream.Timeout) as error:
            assert works[3].wait(30), "still waiting"
        assert ", behind all_reduce" in str(error.value)
