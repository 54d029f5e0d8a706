"""A rank of a job that encrypts, with relays that see, and may change, all that goes over TCP: argv is how, how often.

``plain`` shows that the relays see what is not encrypted.
"""

from __future__ import annotations

import sys
import threading

import damage_rank
import numpy as np

import slipstream

MARK = b"<the text that nobody may read>"
HOW = sys.argv[1]
ROUNDS = 6


class Ear(damage_rank.Relay):
    """Looks for the mark in all that passes."""

    heard = 0  # bytes
    found = 0
    lock_of_all = threading.Lock()

    def change(self, data: bytes) -> bytes:
        return data if HOW in ("listen", "plain") else super().change(data)

    def changed(self, data: bytes) -> bytes:
        with Ear.lock_of_all:
            Ear.heard += len(data)
            Ear.found += data.count(MARK)
        return super().changed(data)


def main() -> None:
    """Collectives against NumPy, with a mark in all data, and an object."""
    damage_rank.put_relay_between(Ear)
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    marks = np.frombuffer(MARK * 20_000, np.uint8)
    for turn in range(ROUNDS):
        for count in (1, 5, 3000, 400_001):
            x = np.arange(count, dtype=np.float64) * (rank + 1) + turn
            slipstream.all_reduce(x, out=x)
            expected = np.arange(count, dtype=np.float64) * (n * (n + 1) / 2) + n * turn
            wrong = int((x != expected).sum())
            assert wrong == 0, f"{wrong} of {count} numbers are wrong"
        for size in (len(MARK), len(marks)):
            data = marks[:size] if rank == turn % n else np.zeros(size, np.uint8)
            got = slipstream.broadcast(data, root=turn % n)
            assert bytes(got) == bytes(marks[:size])
        gathered = slipstream.all_gather(np.full(1000 + 7, rank, np.int32))
        assert (gathered.reshape(n, -1) == np.arange(n)[:, None]).all()
    slipstream.barrier()
    links = slipstream.link_statistics()
    assert links
    assert all(link.encrypted == (HOW != "plain") for link in links if link.transport == "tcp")
    print("damaged", sum(link.damaged for link in links), "heard", Ear.heard, "found", Ear.found)
    slipstream.barrier()
    slipstream.shutdown()


if __name__ == "__main__":
    main()
