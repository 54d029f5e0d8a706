"""One rank of test_abort.py: abort_rank.py COUNT FOLDER. Rank 1 aborts the others' operations, and lives on.

The others print the error of each operation.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import numpy as np

import slipstream
from slipstream.comm.membership import job
from slipstream.plan.choose import SmallCosts

folder = Path(sys.argv[2])
slipstream.init()
job.current().reducers.small_costs = SmallCosts((1.0, 1.0), (0.0, 0.0))  # small ones go through reducers
rank, data = slipstream.rank(), np.ones(int(sys.argv[1]))
slipstream.all_reduce(data, out=data)
if rank == 1:
    for other in (0, 2):
        slipstream.recv(np.empty(1), other)
    slipstream.world().abort("enough")
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
else:
    # The later ones wait in line.
    works = [slipstream.all_reduce(data, out=data, async_op=True) for _ in range(6)]
    with contextlib.suppress(slipstream.Aborted):  # rank 1 may abort before it acknowledges
        slipstream.send(np.ones(1), 1)
    for work in works:
        try:
            work.wait()
        except slipstream.Aborted as error:
            sys.stdout.write(f"error: {str(error).splitlines()[0]}\n")
    (folder / str(rank)).touch()
