"""Two ranks that send a large message to each other before either receives: each prints its error."""

from __future__ import annotations

import numpy as np

import slipstream

slipstream.init()
other = 1 - slipstream.rank()
x = np.ones(4_000_000, np.float32)
try:
    slipstream.send(x, other, tag=7)
    slipstream.recv(x, other, tag=7)
except slipstream.Timeout as error:
    print(error, flush=True)
