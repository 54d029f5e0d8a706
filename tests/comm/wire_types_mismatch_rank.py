"""One of two hosts of which rank 0 alone gives a wire type; both are told."""

from __future__ import annotations

import numpy as np

import slipstream

slipstream.init()
try:
    slipstream.all_reduce(np.ones(100_000, np.float32), wire="int8" if slipstream.rank() == 0 else None)
except slipstream.Mismatch as error:
    print(error)
