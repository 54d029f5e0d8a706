"""A rank of test_interfaces.py: checked all-reduces until a file is there; rank 0 says after each what its lanes are.

interfaces_rank.py FILE
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys

import numpy as np

import slipstream

slipstream.init()
rank, n = slipstream.rank(), slipstream.size()
pattern = (np.arange(1 << 18) % 251 + 1).astype(np.float32)
call, more = 0, True
while more:
    call += 1
    total = slipstream.all_reduce(pattern * (rank + call % 7))
    if not np.array_equal(total, pattern * (n * (n - 1) // 2 + n * (call % 7))):
        raise SystemExit(f"rank {rank}: wrong sum in call {call}")
    if rank == 0:
        (link,) = slipstream.link_statistics()
        print(json.dumps({"call": call, **dataclasses.asdict(link)}), flush=True)
    more = not slipstream.broadcast(np.array([os.path.exists(sys.argv[1])]))[0]
slipstream.shutdown()
