"""One rank of the failure tests: all-reduces until an error comes, and reports it as a line of JSON.

failure_rank.py loop BYTES       all-reduce for ever
failure_rank.py mismatch WHAT    rank 1 differs in shape, dtype, op, order or root
failure_rank.py finished WHAT FILE    rank 0's part of WHAT, which rank 1 calls otherwise, is over: rank 0 ends;
                                 rank 1 waits for FILE before it calls its part
failure_rank.py absent           rank 1 leaves without taking part
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

import slipstream
from slipstream import MAX, SUM, SlipstreamError
from slipstream.base.dtypes import DType
from slipstream.comm.collectives import addresses


def loop(nbytes: int) -> None:
    data = np.ones(nbytes // 4, dtype=np.float32)
    for i in range(1 << 40):
        slipstream.all_reduce(data)
        if i == 3:
            print("running", flush=True)


def mismatch(what: str) -> None:
    odd = slipstream.rank() == 1
    count, dtype, op = 1000, np.float32, SUM
    if what == "shape" and odd:
        count = 1001
    if what == "large-shape":
        count = 1_000_000 + odd
    if what == "dtype" and odd:
        dtype = np.float64
    if what == "op" and odd:
        op = MAX
    data = np.ones(count + 1 if what == "counts" else count, dtype=dtype)
    if what == "transposed":
        data = data.reshape((50, 20) if odd else (20, 50))
    if what == "order" and odd:
        slipstream.broadcast(data)
    if what == "root":
        slipstream.broadcast(data, 1 if odd else 0)
    if what == "counts":
        counts, all_of_them = [1000, 1000 + odd, 1000 - odd], np.empty(3000, np.float32)
        own, whole = data.ctypes.data, all_of_them.ctypes.data
        keep = (data, all_of_them)
        group, dtype = slipstream.world(), int(DType.F32)
        addresses.all_gather(group, own, whole, counts, dtype, keep=keep, sync=True)
    if what == "scale":
        slipstream.all_reduce(data, prescale=0.5 if odd else 0.25)
    slipstream.all_reduce(data, op)
    slipstream.barrier()


def finished(what: str, file: str) -> None:
    slipstream.barrier()
    first = slipstream.rank() == 0
    while not first and not Path(file).exists():
        time.sleep(0.01)  # a poll of a file that the test writes
    data = np.ones((2, 3) if first or "shape" not in what else (3, 2), dtype=np.float32)
    if not first and "dtype" in what:
        data = data.astype(np.int32)
    if not first and "count" in what:
        data = np.ones(8, dtype=np.float32)
    if what.startswith("broadcast"):
        slipstream.broadcast(data, 0)
    elif what.startswith("reduce"):
        slipstream.reduce(data, 1)
    elif first:
        slipstream.send(data, 1)
    else:
        slipstream.recv(data, 0)
    if not first:
        raise AssertionError("no error")


def absent() -> None:
    slipstream.barrier()
    if slipstream.rank() == 1:
        return
    slipstream.all_reduce(np.ones(100_000))


def main() -> None:
    slipstream.init()
    try:
        if sys.argv[1] == "loop":
            loop(int(sys.argv[2]))
        elif sys.argv[1] == "mismatch":
            mismatch(sys.argv[2])
        elif sys.argv[1] == "finished":
            finished(*sys.argv[2:])
        else:
            absent()
    except SlipstreamError as error:
        report = {
            "error": type(error).__name__,
            "rank": getattr(error, "rank", None),
            "text": str(error),
            "at": time.monotonic(),
        }
        print(json.dumps(report), flush=True)
        try:  # the error is sticky
            slipstream.barrier()
        except SlipstreamError as again:
            if type(again) is not type(error):
                raise AssertionError(f"{again!r} instead of {error!r}") from None
        else:
            raise AssertionError("the session works after an error") from None


main()
