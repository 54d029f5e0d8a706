"""One rank of test_late.py: late_rank.py COUNT. Rank 0 prints the error of the operation that times out first."""

from __future__ import annotations

import contextlib
import sys
import time

import numpy as np

import slipstream
from slipstream.base.dtypes import DType, Op
from slipstream.comm.collectives import addresses
from slipstream.comm.membership import job
from slipstream.plan.choose import SmallCosts

LIMIT = 5.0  # seconds, of both operations

slipstream.init()
job.current().reducers.small_costs = SmallCosts((1.0, 1.0), (0.0, 0.0))  # small ones go through reducers
group = slipstream.world()
shared = np.ones(int(sys.argv[1]))
word = np.ones(1)
if slipstream.rank() == 0:
    first = slipstream.all_reduce(shared, out=shared, async_op=True)
    # In line behind the first, whose memory it uses. Nobody else calls it.
    data, count, dtype = shared.ctypes.data, shared.size, int(DType.F64)
    addresses.all_reduce(
        group, data, data, count, dtype, int(Op.SUM), keep=shared, name="behind", timeout=LIMIT
    )
    time.sleep(3)  # so much later is the other one called
    other = addresses.recv(group, word.ctypes.data, 1, dtype, 1, tag=7, keep=word, timeout=LIMIT)
    try:
        slipstream.send(np.ones(1), 1)  # the other rank comes to the first, and "behind" leaves the line
        first.wait()
        other.wait(60)
    except slipstream.Timeout as error:
        sys.stdout.write(f"error: {str(error).splitlines()[0]}\n")
else:
    with contextlib.suppress(slipstream.Timeout):
        slipstream.recv(word, 0)
        slipstream.all_reduce(shared, out=shared)
        slipstream.recv(word, 0)
slipstream.shutdown()
