"""One rank whose first calls come from several threads at once. first_calls_rank.py"""

from __future__ import annotations

import sys
import threading

import numpy as np

import slipstream

THREADS = 8

slipstream.init()
size = slipstream.size()
sys.setswitchinterval(1e-6)  # threads change within whatever runs Python
groups = [slipstream.Group(range(size)) for _ in range(THREADS)]
begin = threading.Barrier(THREADS)
done: list[int] = []


def run(number: int) -> None:
    begin.wait()
    for _ in range(3):
        assert (slipstream.all_reduce(np.ones(4), group=groups[number]) == size).all()
    done.append(number)


threads = [threading.Thread(target=run, args=[number]) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(done) == list(range(THREADS))
