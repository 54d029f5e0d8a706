"""Time-outs of operations that wait for their turn."""

from __future__ import annotations

import numpy as np
import pytest

import slipstream
from comm.sessions import ranks


def test_the_time_of_an_operation_runs_while_it_waits_behind_others() -> None:
    with ranks(2) as (rank, _):
        arrays = [np.ones(1 << 18, dtype=np.float32) for _ in range(4)]
        works = [rank.all_reduce(array) for array in arrays[:3]]  # the other rank does not come
        works.append(rank.all_reduce(arrays[3], timeout=1.0))
        with pytest.raises(slipstream.Timeout) as error:
            assert works[3].wait(30), "still waiting"
        assert "for its turn, behind all_reduce" in str(error.value)
