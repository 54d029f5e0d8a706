"""A rank of `many_ranks.py`: small all-reduces with the links that they need, then with a link to every rank.

    many_ranks_rank.py BYTES CALLS REPEATS

Rank 0 prints a line of JSON: for both cases, by rank, the time of a call in each repeat and the memory beyond what the
rank had before it imported slipstream. Ends with an error if a value is wrong.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import numpy as np


def memory() -> int:
    """Bytes of this process: its own, and its share of those that it shares with others."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        (kib,) = (int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return kib << 10


def main() -> None:
    """Measures what the command line says."""
    nbytes, calls, repeats = (int(text) for text in sys.argv[1:4])
    before = memory()
    slipstream: Any = importlib.import_module("slipstream")
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    data = np.full(nbytes // 4, rank, np.float32)
    total = n * (n - 1) / 2

    def seconds() -> float:
        slipstream.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            result = slipstream.all_reduce(data)
        took = (time.perf_counter() - begin) / calls
        if not (result == total).all():
            raise SystemExit(f"rank {rank}: a wrong sum")
        return took

    found = {}
    for links in ("few", "all"):
        if links == "all" and not (slipstream.all_to_all(np.full(n, rank)) == np.arange(n)).all():
            raise SystemExit(f"rank {rank}: wrong blocks")
        seconds()  # warms up
        times = [seconds() for _ in range(repeats)]
        mine = np.array([[*times, memory() - before]])
        gathered = slipstream.all_gather(mine).reshape(n, repeats + 1)
        found[links] = {"seconds": gathered[:, :-1].tolist(), "bytes": gathered[:, -1].tolist()}
    if rank == 0:
        print(json.dumps(found), flush=True)
    slipstream.shutdown()


if __name__ == "__main__":
    main()
