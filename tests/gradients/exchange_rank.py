"""One of three ranks whose framework is NumPy, in a job beside that of `slipstream.init`, which is never called.

exchange_rank.py average: gradients of several steps are averaged; prints "averaged"
exchange_rank.py differ, or "passes differ": rank 1 has another shape, or number of passes; prints the error
"""

from __future__ import annotations

import sys

import numpy as np
from numpy_gradients import Arrays, exchange

from slipstream.base.errors import Mismatch
from slipstream.comm.membership import job
from slipstream.comm.membership.group import Group

UNUSED = 3
STEPS = 3


def check_average(group: Group) -> None:
    shapes = [((7, 3), "f4"), ((5,), "f8"), ((), "f4"), ((4,), "f4"), ((300_000,), "f4")]
    arrays = Arrays([np.zeros(shape, dtype) for shape, dtype in shapes])
    reducing = exchange(arrays, group)
    used = [i for i in range(len(shapes)) if i != UNUSED]
    for step in range(STEPS):
        shift = (group.rank + step) % len(used)
        arrays.gradients[UNUSED] = None
        arrays.backward(group.rank + 1.0, used[shift:] + used[:shift])
        assert reducing.touched
        reducing.synchronize()
        assert not reducing.touched
        mean = sum(range(1, group.size + 1)) / group.size
        for i, gradient in enumerate(arrays.gradients):
            assert gradient is not None
            assert gradient.shape == arrays.values[i].shape
            assert (gradient == (0 if i == UNUSED else mean * (i + 1))).all(), (step, i, gradient)
    del reducing
    arrays.ready(0)  # the exchange is gone, and parameters may outlive it


def check_passes(group: Group) -> None:
    arrays = Arrays([np.zeros(3)])
    reducing = exchange(arrays, group, passes=2)
    for _ in range(2):
        arrays.backward(1.0, [0])
        arrays.backward(4.0, [0])
        reducing.synchronize()
        assert (arrays.gradients[0] == 4.0).all()


def main() -> None:
    entered = job.enter()
    group = Group(job=entered)
    if sys.argv[1] != "average":
        odd = group.rank == 1
        arrays = Arrays([np.zeros(2), np.zeros(4 if odd and sys.argv[1] == "differ" else 3)])
        reducing = exchange(arrays, group, passes=2 if odd and sys.argv[1] == "passes differ" else 1)
        try:
            reducing.synchronize()
        except Mismatch as error:
            print(error, flush=True)
    else:
        check_average(group)
        check_passes(group)
        assert not job.is_initialized()
        print("averaged", flush=True)
    entered.close()


main()
