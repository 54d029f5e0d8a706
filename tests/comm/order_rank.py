"""Small operations begin although the group has more bulk under way than it runs at once: they never wait behind it.

Rank 2 takes part in the bulk only when the others' small operation is done. order_rank.py; three ranks.
"""

from __future__ import annotations

import numpy as np

import slipstream

BULK = 5  # more than run at once


def main() -> None:
    slipstream.init()
    rank = slipstream.rank()
    bulk = [np.full(100_000, k + 1.0 if rank == 2 else 0.0) for k in range(BULK)]
    small = np.full(3, 7.0 if rank == 0 else 0.0)
    word = np.zeros(1)
    if rank == 2:
        slipstream.recv(word, 1, tag=1)
    works = [slipstream.broadcast(data, root=2, out=data, async_op=True) for data in bulk]
    slipstream.broadcast(small, root=0, out=small)
    if rank == 1:
        slipstream.send(word, 2, tag=1)
    for work in works:
        work.wait()
    assert (small == 7.0).all(), small
    for k, data in enumerate(bulk):
        assert (data == k + 1.0).all(), (k, data[:3])
    slipstream.shutdown()


main()
