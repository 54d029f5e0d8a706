"""What a rank keeps of tags and groups that are not used again. memory_rank.py MODE FIRST COUNT

MODE "tags": each message has a tag of its own; "groups": each all-reduce has a group of its own. Prints the bytes of
heap a tag or group that the last ``COUNT`` of them added, after ``FIRST`` others.
"""

from __future__ import annotations

import gc
import sys

import numpy as np

import slipstream
from slipstream.comm.membership.group import Group

MODE, FIRST, COUNT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def resident() -> int:
    """Bytes of the process that are in memory and backed by no file."""
    gc.collect()
    with open("/proc/self/status", encoding="ascii") as file:
        found = dict(line.split(":", 1) for line in file)
    return int(found["RssAnon"].split()[0]) << 10


def tags(first: int, count: int) -> None:
    rank = slipstream.rank()
    data = np.full(2, 7.0 + rank, np.float32)
    for tag in range(first, first + count):
        if rank == 0:
            slipstream.send(data, 1, tag=tag)
        else:
            slipstream.recv(data, 0, tag=tag)
        assert data[0] == 7.0


def groups(first: int, count: int) -> None:
    for number in range(first, first + count):
        data = np.full(2, float(number), np.float32)
        slipstream.all_reduce(data, out=data, group=Group())
        assert data[0] == 2.0 * number


slipstream.init()
run = {"tags": tags, "groups": groups}[MODE]
run(0, FIRST)
before = resident()
run(FIRST, COUNT)
print(f"{(resident() - before) / COUNT:.0f}")
slipstream.shutdown()
