"""Two ranks that receive from each other before either sends: each prints its error."""

from __future__ import annotations

import numpy as np

import slipstream

slipstream.init()
other = 1 - slipstream.rank()
x = np.ones(1000, np.float32)
try:
    slipstream.recv(x, other, tag=7)
    slipstream.send(x, other, tag=7)
except slipstream.Timeout as error:
    print(error, flush=True)
