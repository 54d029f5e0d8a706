"""A rank of `lanes.py loopback`: the CPU time of all-reduces, slipstream and gloo in turns in the same processes.

    lanes_cpu_rank.py BYTES CALLS REPEATS

Rank 0 prints a line of JSON: for each contender and repeat the user and system time of all ranks, all their threads
included, and the time on the clock, both in seconds per GB that a rank puts in. Ends with an error if a value is wrong.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import slipstream
from slipstream.bench.collective.contenders import Place
from slipstream.bench.collective.contenders.torch_distributed import join_torch
from slipstream.bench.machine import cpu_seconds


def main() -> None:
    """Measures what the command line says."""
    nbytes, calls, repeats = (int(text) for text in sys.argv[1:4])
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    distributed = join_torch(Place(rank, n, slipstream.local_rank(), True, None))
    data = np.empty(nbytes // 4, np.float32)
    tensor = torch.from_numpy(data)
    contenders: dict[str, Callable[[], object]] = {
        "slipstream": lambda: slipstream.all_reduce(data, out=data),
        "gloo": lambda: distributed.all_reduce(tensor),
    }
    found: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "wall": []} for name in contenders}
    for repeat in range(-1, repeats):  # the first one warms up
        for name, call in contenders.items():
            data.fill(1)
            slipstream.barrier()
            start, used = time.perf_counter(), cpu_seconds()
            for _ in range(calls):
                call()
            slipstream.barrier()  # what threads do after a call has returned counts too
            took = np.array([cpu_seconds() - used, (time.perf_counter() - start) / n])
            if not (data == float(n) ** calls).all():
                raise SystemExit(f"rank {rank}: {name} has a wrong sum")
            cpu, wall = slipstream.all_reduce(took) / (nbytes * calls / 1e9)
            if repeat >= 0:
                found[name]["cpu"].append(float(cpu))
                found[name]["wall"].append(float(wall))
    if rank == 0:
        print(json.dumps(found), flush=True)
    distributed.destroy_process_group()
    slipstream.shutdown()


if __name__ == "__main__":
    main()
