"""A rank of `test_straggler`: steps of little compute and 8 MiB of gradients."""

from __future__ import annotations

import time

import numpy as np

import slipstream

slipstream.init()
data = np.ones(1 << 21, np.float32)
for _ in range(9):
    time.sleep(0.01)
    slipstream.all_reduce(data)
    slipstream.mark_step()
slipstream.shutdown()
