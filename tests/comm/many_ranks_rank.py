"""A rank among more than 8 of a host: it has a link to each of the others, and looks only at those that have sent.

Values are checked against NumPy on odd sizes: what each rank sends to each, floods of small messages that a link has no
room for, and large ones.
"""

from __future__ import annotations

import numpy as np

import slipstream

FLOOD = 300  # of 4000 bytes: several times what a link of many ranks holds

slipstream.init()
rank, size = slipstream.rank(), slipstream.size()
rng = np.random.default_rng(7)

for width in (1, 257, 20_001):
    table = rng.integers(-1000, 1000, (size, size, width))
    blocks = slipstream.all_to_all(np.ascontiguousarray(table[rank]))
    assert np.array_equal(blocks, table[:, rank]), f"all_to_all of {width}: wrong"
for count in (1, 1023, 70_001):
    table = rng.integers(-1000, 1000, (size, count))
    assert np.array_equal(slipstream.all_reduce(table[rank]), table.sum(0)), f"all_reduce of {count}: wrong"
    assert np.array_equal(slipstream.all_gather(table[rank]), table.ravel()), f"all_gather of {count}: wrong"

right, left = (rank + 1) % size, (rank - 1) % size
messages = [np.full(1000, 1000 * rank + number, np.int32) for number in range(FLOOD)]
sent = [slipstream.send(message, right, tag=5, async_op=True) for message in messages]
found = np.empty(1000, np.int32)
for number in range(FLOOD):
    slipstream.recv(found, left, tag=5)
    assert (found == 1000 * left + number).all(), f"message {number} of rank {left}: {found[0]}"
for work in sent:
    work.wait()
slipstream.barrier()
slipstream.shutdown()
