"""One of two ranks: a large sum with a prescale, and small ones of another group beside it.

Prints the processor time of a rank from its call of the large sum to its return from a small one, while the other rank
has not called the large one yet; what scaling all of the input takes; and how many small ones were done meanwhile.
"""

from __future__ import annotations

import json
import threading
import time

import numpy as np

import slipstream

COUNT = 32 << 20  # float32: 128 MiB
TURNS = 3

slipstream.init()
rank = slipstream.rank()
other = slipstream.Group([1, 0])
small, large = np.ones(4), np.ones(COUNT, np.float32)


def seconds_to_scale() -> float:
    begin = time.process_time()
    np.multiply(large, np.float32(1), out=large)
    return time.process_time() - begin


def beside(work: slipstream.Work) -> int:
    """Small sums in a thread, until the large one is done on both ranks. How many there were."""
    count, over = 0, False

    def run() -> None:
        nonlocal count, over
        while not over:
            count += 1
            over = bool(slipstream.all_reduce(np.array([work.done()]), slipstream.MIN, group=other)[0])

    thread = threading.Thread(target=run)
    thread.start()
    work.wait()
    thread.join()
    return count


slipstream.all_reduce(large, out=large)  # links, plans and memory are there
large[:] = 1
slipstream.all_reduce(small, group=other)
whole, alone, counts = [], [], []
for _ in range(TURNS):
    for first in range(2):
        whole.append(seconds_to_scale())
        slipstream.barrier(group=other)
        if rank == first:
            begin = time.process_time()
            work = slipstream.all_reduce(large, prescale=0.5, out=large, async_op=True)
        slipstream.all_reduce(small, group=other)
        if rank == first:
            alone.append(time.process_time() - begin)
        slipstream.barrier(group=other)
        if rank != first:
            work = slipstream.all_reduce(large, prescale=0.5, out=large, async_op=True)
        counts.append(beside(work))
assert (large == 1).all(), large[:3]
print(json.dumps({"whole": min(whole), "alone": min(alone), "counts": counts}))
slipstream.shutdown()
