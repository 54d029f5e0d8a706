"""A rank on one processor of its host; says of the world, and of ranks 0 and 1 together, whether they are crowded."""

import os
import sys

import numpy as np

import slipstream

os.sched_setaffinity(0, {int(sys.argv[1].split(",")[int(os.environ["SLIPSTREAM_RANK"])])})
slipstream.init()
groups = [slipstream.world()]
if slipstream.rank() < 2:
    groups.append(slipstream.Group([0, 1]))
print([group.topology.crowded for group in groups], flush=True)
assert (slipstream.all_reduce(np.ones(8)) == slipstream.size()).all()
slipstream.shutdown()
