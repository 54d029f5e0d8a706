"""A rank among many: all-reduces of each power of two of bytes up to 4 MiB, and a little more; then all collectives."""

from __future__ import annotations

from typing import Any

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

root, width = size - 1, 101
table = np.random.default_rng(7).integers(-1000, 1000, (size, size, width), np.int32)
mine = np.ascontiguousarray(table[rank])


def check(what: str, found: Any, expected: np.ndarray | None) -> None:
    assert (found is None) if expected is None else np.array_equal(found, expected), f"{what}: wrong"


def on_root(expected: np.ndarray) -> np.ndarray | None:
    return expected if rank == root else None


check("all_gather", slipstream.all_gather(mine[0]), table[:, 0].ravel())
check("all_to_all", slipstream.all_to_all(mine), table[:, rank])
check("broadcast", slipstream.broadcast(mine[1], root), table[root, 1])
check("reduce", slipstream.reduce(mine[0], root), on_root(table[:, 0].sum(0, dtype=np.int32)))
check("reduce_scatter", slipstream.reduce_scatter(mine), table[:, rank : rank + 1].sum(0, dtype=np.int32))
check("gather", slipstream.gather(mine[0], root), on_root(table[:, 0].ravel()))
row = np.empty((1, width), mine.dtype)
check("scatter", slipstream.scatter(mine, root, out=row), table[root, rank : rank + 1])
work = slipstream.send(mine[0], (rank + 1) % size, async_op=True)
check("recv", slipstream.recv(np.empty(width, mine.dtype), rank - 1 if rank else root), table[rank - 1, 0])
work.wait()
slipstream.barrier()
slipstream.shutdown()
