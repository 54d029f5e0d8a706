"""One of two ranks that look at the packets of a sum beside a reducer: dscp_rank.py CLASS.

A packet socket sees what this host sends and what it receives, in the order and with the bytes of the wire.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import numpy as np

import slipstream

ETH_P_ALL = 3
LARGE = 1000  # bytes: data, and no acknowledgement


def packets(watch: socket.socket) -> Iterator[tuple[bytes, str, int]]:
    """The peer's address, "in" or "out", and the DSCP class of all TCP packets with data that have passed."""
    while True:
        try:
            head, where = watch.recvfrom(1 << 17)
        except BlockingIOError:
            return
        way = "out" if where[2] == socket.PACKET_OUTGOING else "in"  # type: ignore[attr-defined]
        if len(head) < LARGE:
            continue
        if head[0] >> 4 == 4 and head[9] == socket.IPPROTO_TCP:
            yield (head[16:20] if way == "out" else head[12:16]), way, head[1] >> 2
        if head[0] >> 4 == 6 and head[6] == socket.IPPROTO_TCP:
            yield (head[24:40] if way == "out" else head[8:24]), way, (head[0] & 15) << 2 | head[1] >> 6


expected = int(sys.argv[1])
slipstream.init()
data = np.ones(1 << 19, dtype=np.float32)
assert (slipstream.all_reduce(data) == 2).all()  # opens all connections
with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as watch:
    watch.bind(("eth0", ETH_P_ALL))
    watch.setblocking(False)
    watch.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    slipstream.barrier()
    assert (slipstream.all_reduce(data) == 2).all()
    slipstream.barrier()
    seen = list(packets(watch))
ways = {(peer, way) for peer, way, _ in seen}
assert len(ways) == 4, f"data went {ways}, not to and from the other rank and the reducer"
wrong = {one for one in seen if one[2] != expected}
assert not wrong, f"not of class {expected}: {wrong}"
slipstream.shutdown()
