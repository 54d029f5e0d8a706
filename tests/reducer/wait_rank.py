"""One rank of test_waits.py: wait_rank.py COUNT. Rank 0 prints what a wait says that ends too early."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import slipstream
from comm.interruption import until, waits
from slipstream.comm.membership import job
from slipstream.plan.choose import SmallCosts

slipstream.init()
job.current().reducers.small_costs = SmallCosts((1.0, 1.0), (0.0, 0.0))  # small ones go through reducers
array = np.ones(int(sys.argv[1]))
slipstream.all_reduce(array)  # the sessions with the reducers are up
if slipstream.rank() == 0:
    work = slipstream.all_reduce(array, async_op=True)
    until(lambda: waits(slipstream.world().session), "it waits for the other rank")
    try:
        work.wait(0.2)
    except slipstream.Timeout as error:
        print("error:", error, flush=True)
    slipstream.send(np.ones(1), 1)  # now it may come
    work.wait()
else:
    slipstream.recv(np.ones(1), 0)
    slipstream.all_reduce(array)
slipstream.shutdown()
