"""One rank of test_differing.py: differing_rank.py COUNT CALL

Rank 1 makes the CALL "gather" or "receive", and the others an all-reduce of COUNT numbers, through reducers. Each
prints its error.
"""

from __future__ import annotations

import sys

import numpy as np

import slipstream
from slipstream.comm.membership import job
from slipstream.plan.choose import SmallCosts

slipstream.init()
job.current().reducers.small_costs = SmallCosts((1.0, 1.0), (0.0, 0.0))  # small ones go through reducers
numbers = np.ones(int(sys.argv[1]))
for _ in range(3):
    slipstream.all_reduce(numbers)
try:
    if slipstream.rank() != 1:
        slipstream.all_reduce(numbers)
    elif sys.argv[2] == "gather":
        slipstream.gather(numbers, 0)
    else:
        slipstream.recv(numbers, 0)
except slipstream.SlipstreamError as error:
    print(f"{type(error).__name__}:", str(error).splitlines()[0])
