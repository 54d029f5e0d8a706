"""One of two ranks that sum until their link has had so many bulk lanes, in turn: lane_count_rank.py LANES..."""

from __future__ import annotations

import sys
import time

import numpy as np

import slipstream

LIMIT = 60  # seconds, for the first number
LONG = 240  # for those that take a review,
KEPT = 5  # which are kept so long: a review begins with few lanes, too

slipstream.init()
data = np.ones(1 << 20, dtype=np.float32)
other = 1 - slipstream.rank()


def reach(lanes: int, limit: float, kept: float) -> None:
    """Both ranks go on, or none does."""
    end = time.monotonic() + limit
    since = time.monotonic()
    while True:
        assert (slipstream.all_reduce(data) == 2).all()
        (link,) = (one for one in slipstream.link_statistics() if one.rank == other)
        up = sum(lane.up and not lane.control for lane in link.lanes)
        now = time.monotonic()
        since = since if up == lanes else now
        late = now > end
        here = slipstream.all_reduce(np.array([up == lanes and now >= since + kept, late]).astype(np.int32))
        if here[0] == 2:
            break
        assert not here[1], f"{up} lanes after {limit} s"
    assert link.lost == 0


for number, wanted in enumerate(sys.argv[1:]):
    reach(int(wanted), *((LONG, KEPT) if number else (LIMIT, 0)))
    if slipstream.rank() == 0:
        print(wanted, flush=True)
slipstream.shutdown()
