"""A rank among many: all-reduces of every power of two of bytes up to 4 MiB, and a little more."""

from __future__ import annotations

import numpy as np

import slipstream

LARGEST = 4 << 20

slipstream.init()
rank, size = slipstream.rank(), slipstream.size()
number = np.arange(LARGEST // 4 + 1, dtype=np.int32)
sizes = [0, 1, *((1 << magnitude) // 4 + extra for magnitude in range(10, 23) for extra in (0, 1))]
for count in sizes:
    found = slipstream.all_reduce(number[:count] * (rank + 1))
    expected = number[:count] * (size * (size + 1) // 2)
    assert np.array_equal(found, expected), f"{count} elements: wrong"
gathered = slipstream.all_gather(np.array([rank]))
assert np.array_equal(gathered, np.arange(size)), gathered
blocks = slipstream.all_to_all(np.arange(size) + 1000 * rank)
assert np.array_equal(blocks, np.arange(size) * 1000 + rank), blocks
assert slipstream.broadcast(np.array([rank]), size - 1)[0] == size - 1
slipstream.shutdown()
