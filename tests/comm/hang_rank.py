"""One rank of the tests of hangs: an all-reduce on a ring that the last rank does not take part in.

hang_rank.py skips           the last rank is done with its program, and computes
hang_rank.py blocked         the last rank waits for a pipe that nobody writes to
hang_rank.py other-group     the last rank waits for rank 0 in another group's operation
hang_rank.py behind          the last rank waits for rank 0 in a receive
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np

import slipstream
from slipstream.base.dtypes import DType
from slipstream.base.errors import Timeout
from slipstream.comm.collectives import addresses


def absent(what: str, pair: slipstream.Group | None) -> None:
    """What the last rank does instead, until the session fails."""
    if what == "other-group":
        assert pair is not None
        array = np.ones(7)
        addresses.broadcast(
            pair, array.ctypes.data, array.ctypes.data, 7, int(DType.F64), 0, keep=array, timeout=60
        ).wait()
    elif what == "behind":
        array = np.ones(5)
        addresses.recv(
            slipstream.world(), array.ctypes.data, 5, int(DType.F64), 0, keep=array, timeout=60
        ).wait()
    else:
        reading, writing = os.pipe()
        session = slipstream.world().session
        if what == "skips":
            os.close(writing)
        # "blocked" ends when the test has seen the reports of all ranks and kills it
        os.read(reading, 1)
        while True:
            session.check()
            np.ones(1000).sum()


def main() -> None:
    what = sys.argv[1]
    slipstream.init()
    me, n = slipstream.rank(), slipstream.size()
    pair = slipstream.Group([0, n - 1]) if me in (0, n - 1) else None
    for _ in range(3):
        slipstream.all_reduce(np.ones(10, dtype=np.float32))
    slipstream.barrier()
    slipstream.world().use("all_reduce", "ring", 1 << 16)
    try:
        if me == n - 1:
            absent(what, pair)
        slipstream.all_reduce(np.ones(1 << 20, dtype=np.float32))
    except Timeout as error:
        print(json.dumps({"text": str(error), "report": slipstream.world().session.report()}), flush=True)


main()
