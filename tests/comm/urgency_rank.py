"""A rank of test_urgency.py: large all_reduces of different urgency; what ranks wait for must not wait for others."""

import sys

import numpy as np

import slipstream
from slipstream.base.dtypes import DType, Op
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.work import Work

COUNT = 1 << 20

slipstream.init()
group = slipstream.world()
arrays = [np.full(COUNT, float(number + 1), np.float32) for number in range(6)]


def start(number: int, urgency: int) -> Work:
    array = arrays[number]
    address = array.ctypes.data
    kind, op = int(DType.F32), int(Op.SUM)
    return addresses.all_reduce(group, address, address, COUNT, kind, op, keep=array, urgency=urgency)


def one_rank_waits_for_an_old_work_before_it_calls_urgent_ones() -> None:
    works = [start(number, 0) for number in range(3)]
    if group.rank == 0:
        for work in works:
            work.wait()
    works += [start(number, 5) for number in (3, 4, 5)]
    for work in works:
        work.wait()
    for number, array in enumerate(arrays):
        assert (array == (number + 1) * group.size).all()


def urgent_works_on_memory_of_earlier_ones() -> None:
    """On rank 0 the earlier ones are done when it calls these, so there they are urgent."""
    works = [start(number, 0) for number in range(6)]
    if group.rank == 0:
        for work in works[:2]:
            work.wait()
    works += [start(number, 5) for number in (0, 1)]
    for work in works:
        work.wait()
    for number, array in enumerate(arrays):
        times = group.size ** (2 if number < 2 else 1)
        assert (array == (number + 1) * times).all()


globals()[sys.argv[1]]()
print("right")
