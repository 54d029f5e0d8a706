"""A rank whose sums have a prescale. Prints by how many bytes more its memory grew for a large one than without it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import slipstream
from slipstream.comm.membership.group import world

COUNT = 48 << 20  # float32: 192 MiB


def shared() -> int:
    """Bytes of shared memory that this process has touched: what the engine stages in."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssShmem")


slipstream.init()
rank, size = slipstream.rank(), slipstream.size()
total = size * (size + 1) // 2
for algorithm in sys.argv[1:]:  # values first
    world().use("all_reduce", algorithm, 16 << 10)
    for count in (1, 7, 1000, 20_003, 300_001):
        numbers = np.arange(count, dtype=np.float32) % 64
        expected = numbers * (total / 4)
        np.testing.assert_array_equal(slipstream.all_reduce(numbers * (rank + 1), prescale=0.25), expected)
        own = slipstream.empty(count, np.float32)
        own[:] = numbers * (rank + 1)
        np.testing.assert_array_equal(slipstream.all_reduce(own, prescale=0.25, out=own), expected)
        np.testing.assert_array_equal(
            slipstream.reduce_scatter(np.tile(numbers * (rank + 1), size), prescale=0.25), expected
        )
for scale in (0.0, -0.0, np.array(-0.0)):  # equal to Python
    np.testing.assert_array_equal(
        np.signbit(slipstream.all_reduce(np.ones(3), prescale=scale)), np.signbit(scale)
    )
large = np.full(COUNT, rank + 1, np.float32)
world().use("all_reduce", sys.argv[1], 256 << 10)
slipstream.all_reduce(large, out=large)  # what it takes without
before = shared()
slipstream.all_reduce(large, prescale=0.25, out=large)
grown = shared() - before
assert (large == total * size / 4).all()
large[:] = rank + 1
slipstream.reduce_scatter(large)
before = shared()
part = slipstream.reduce_scatter(large, prescale=0.25)
print(max(grown, shared() - before))
assert (part == total / 4).all()
slipstream.shutdown()
