"""A rank in a control group with little memory: ``reserved_rank.py GROUP MIB``. Prints how its arrays were refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import slipstream

group, mib = Path(sys.argv[1]), int(sys.argv[2])
(group / "cgroup.procs").write_text(str(os.getpid()))
slipstream.init()
try:
    array = slipstream.empty(mib << 18)
    array.fill(1)
    print("made")
except MemoryError as error:
    print(error)
small = slipstream.empty(1001)
small[...] = np.arange(1001)
np.testing.assert_array_equal(slipstream.all_reduce(small), np.arange(1001) * slipstream.size())
