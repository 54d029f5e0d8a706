"""What a rank keeps of jobs that it has left, beside reducers. Prints the bytes of memory that the last ones added."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np

import slipstream
from slipstream.comm.reducers import calibration

CYCLES = 5

calibration._LARGE_TURNS = calibration._SMALL_TURNS = 1  # a cycle takes seconds otherwise
calibration._LEAST_SECONDS = 0
calibration._LEAST_BYTES = calibration._MOST_BYTES  # all of its memory is used


def resident() -> int:
    """Bytes of the process that are in memory and backed by no file."""
    gc.collect()
    found = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(found["RssAnon"].split()[0]) << 10


def cycle() -> None:
    slipstream.init()
    assert (slipstream.all_reduce(np.ones(1 << 16, np.float32)) == slipstream.size()).all()
    slipstream.shutdown()


cycle()  # what it imports and keeps once
before = resident()
for _ in range(CYCLES):
    cycle()
print(resident() - before)
