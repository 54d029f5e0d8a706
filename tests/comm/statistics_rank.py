"""A rank of `test_statistics`: what its links are, and what they have carried."""

from __future__ import annotations

import sys
import time

import numpy as np

import slipstream

slipstream.init()
rank, size, transport = slipstream.rank(), slipstream.size(), sys.argv[1]
kind = np.float32
small, large = np.ones(4, kind), np.ones(1 << 20, kind)
for data in (small, large):
    for peer in range(size):  # every rank sends to every other, so that all links are up
        if peer != rank:
            sent = slipstream.send(data, peer, async_op=True)
            slipstream.recv(np.empty_like(data), peer)
            sent.wait()
shared = slipstream.empty(1 << 20)
shared[:] = 1
slipstream.all_reduce(shared, out=shared)
links = slipstream.link_statistics()
assert [link.rank for link in links] == [peer for peer in range(size) if peer != rank]
for link in links:
    near = transport == "shm" or (transport == "mixed" and link.rank % 2 == rank % 2)
    assert link.transport == ("shm" if near else "tcp"), link
    assert bool(link.lanes) == (not near), link
    assert link.sent >= large.nbytes, link
    assert link.received >= large.nbytes, link
    assert link.sent < 16 * large.nbytes, link
    if not near:
        assert link.sent == sum(lane.sent for lane in link.lanes)
if transport == "shm":  # what one has sent, another has received, but for words that are on their way
    mine = np.array([[link.sent, link.received] for link in links]).sum(axis=0)
    total = slipstream.all_reduce(mine)
    assert abs(total[0] - total[1]) < 64 << 10, total
before = {link.rank: link for link in slipstream.link_statistics()}
slipstream.barrier()  # from here on the others may leave
if rank == 0:
    assert not any(link.closed for link in before.values())
    while not all(link.closed for link in slipstream.link_statistics()):
        time.sleep(0.01)  # a poll of what the others' leaving changes
    links = slipstream.link_statistics()
    assert [link.rank for link in links] == [peer for peer in range(size) if peer != rank]
    for link in links:
        earlier = before[link.rank]
        assert (link.transport, len(link.lanes)) == (earlier.transport, len(earlier.lanes)), link
        assert link.sent >= earlier.sent, link
        assert link.received >= earlier.received, link
        assert not any(lane.up for lane in link.lanes), link
slipstream.shutdown()
