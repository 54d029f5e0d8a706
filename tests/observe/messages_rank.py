"""A rank of `test_messages`: one small all-reduce."""

from __future__ import annotations

import numpy as np

import slipstream

slipstream.init()
slipstream.all_reduce(np.ones(100, np.float32))
slipstream.shutdown()
