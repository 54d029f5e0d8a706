"""One of two ranks that sum until each of their links has so many bulk lanes: lane_count_rank.py LANES."""

from __future__ import annotations

import sys
import time

import numpy as np

import slipstream

LIMIT = 60  # seconds

slipstream.init()
data = np.ones(1 << 20, dtype=np.float32)
other = 1 - slipstream.rank()
end = time.monotonic() + LIMIT
while True:
    assert (slipstream.all_reduce(data) == 2).all()
    (link,) = (one for one in slipstream.link_statistics() if one.rank == other)
    up = sum(lane.up and not lane.control for lane in link.lanes)
    late = time.monotonic() > end
    # Both go on, or none does.
    here = slipstream.all_reduce(np.array([up == int(sys.argv[1]), late]).astype(np.int32))
    if here[0] == 2:
        break
    assert not here[1], f"{up} lanes after {LIMIT} s"
assert link.lost == 0
slipstream.shutdown()
