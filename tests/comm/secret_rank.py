"""A rank of test_secrets.py: says all that it can, and stays until the test makes the file that it is given."""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

import numpy as np

import slipstream
from slipstream.comm.membership import job

slipstream.init()
slipstream.all_reduce(np.ones(100_000))
mine = job.current()
print(mine, mine.membership, mine.settings, slipstream.link_statistics())
try:
    slipstream.all_reduce(np.ones(3), op="no such operation")
except ValueError:
    traceback.print_exc()
print("said", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)  # a poll of a file that the test makes
slipstream.shutdown()
