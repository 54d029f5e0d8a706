"""One rank whose daemon threads are in the middle of collectives when its main thread ends."""

from __future__ import annotations

import threading

import numpy as np

import slipstream

THREADS = 4


def work_for_ever(group: slipstream.Group, started: threading.Event) -> None:
    while True:
        slipstream.all_reduce(np.ones(1000), group=group)
        started.set()


slipstream.init()
for _ in range(THREADS):
    started = threading.Event()
    group = slipstream.Group(range(slipstream.size()))
    threading.Thread(target=work_for_ever, args=(group, started), daemon=True).start()
    started.wait()
slipstream.barrier()
print("done", flush=True)
