"""How far the clock of this rank's host is from that of rank 0's."""

from __future__ import annotations

import time

import numpy as np

from slipstream.base.dtypes import Op
from slipstream.comm.measuring.runs import Runs

__all__ = ["clock_offset"]

_ROUNDS = 7


def clock_offset(runs: Runs, rank: int) -> int:
    """Nanoseconds to add to `time.time_ns` of this rank to have that of rank 0. Collective, all ranks.

    It is off by about the time of a message: the ranks look at their clocks as they leave a barrier.
    """
    found = []
    for _ in range(_ROUNDS):
        runs.agree(np.zeros(1), Op.MAX)
        mine = float(time.time_ns())
        theirs = float(runs.agree(np.array([mine if rank == 0 else 0.0]), Op.SUM)[0])
        found.append(theirs - mine)
    return round(sorted(found)[_ROUNDS // 2])
