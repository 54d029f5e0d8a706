"""A rank of `lanes.py`: checked all-reduces for a while, if wanted with connections reset under it all the time.

    lanes_rank.py SECONDS BYTES [RESETS_EVERY_SECONDS [AHEAD]]

With AHEAD > 1 so many calls are under way at once.
Rank 0 prints a line of JSON: when each call began and ended (seconds), how many connections were reset, the local
addresses of the lanes of each link at first ("" for one that is still to come), and the link statistics at the end.
Ends with an error if a value is wrong.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import json
import os
import random
import socket
import sys
import threading
import time

import numpy as np

import slipstream

_libc = ctypes.CDLL(None, use_errno=True)


def connection_from(local: str) -> socket.socket | None:
    """The TCP connection over IPv4 of this process whose own address is ``local``: a copy, to be closed."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            if sock.family == socket.AF_INET and sock.type == socket.SOCK_STREAM:
                sock.getpeername()  # not the listener
                if "{}:{}".format(*sock.getsockname()) == local:
                    return sock
        except OSError:
            pass
        sock.close()
    return None


def reset_connection(local: str) -> bool:
    """Resets the TCP connection of this process whose own address is ``local``, as a router might."""
    sock = connection_from(local)
    if sock is None:
        return False
    with sock:
        nobody = ctypes.create_string_buffer(16)  # AF_UNSPEC: disconnects, with a reset
        return _libc.connect(sock.fileno(), nobody, 16) == 0


class Disturber(threading.Thread):
    """Resets a random lane every ``every`` seconds until stopped."""

    def __init__(self, every: float) -> None:
        super().__init__(daemon=True)
        self.every = every
        self.stop = threading.Event()
        self.resets = 0
        self.random = random.Random(slipstream.rank())

    def run(self) -> None:
        """The thread."""
        while not self.stop.wait(self.every):
            lanes = [lane for link in slipstream.link_statistics() for lane in link.lanes if lane.up]
            if lanes:
                self.resets += reset_connection(self.random.choice(lanes).local)


def main() -> None:
    """Measures for as long as the command line says."""
    seconds, nbytes = float(sys.argv[1]), int(sys.argv[2])
    every = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    slipstream.init()
    rank, n = slipstream.rank(), slipstream.size()
    ahead = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    pattern = (np.arange(nbytes // 4) % 251 + 1).astype(np.float32)
    mine, wanted = pattern * (rank + 1), pattern * (n * (n + 1) // 2)
    buffers = [np.empty_like(pattern) for _ in range(ahead)]
    disturber = Disturber(every) if every and rank == n - 1 else None
    slipstream.barrier()
    first = [[lane.local for lane in link.lanes] for link in slipstream.link_statistics()]
    if disturber is not None:
        disturber.start()
    begin, calls = time.perf_counter(), []
    pending: collections.deque[tuple[float, slipstream.Work, np.ndarray]] = collections.deque()
    more = True
    while more or pending:
        if more:
            data = buffers[(len(calls) + len(pending)) % ahead]
            np.copyto(data, mine)
            if ahead == 1:
                slipstream.barrier()
            start = time.perf_counter()
            pending.append((start, slipstream.all_reduce(data, out=data, async_op=True), data))
            if len(pending) < ahead:
                continue
        start, work, data = pending.popleft()
        work.wait()
        end = time.perf_counter()
        calls.append((start - begin, end - begin))
        if not np.array_equal(data, wanted):
            raise SystemExit(f"rank {rank}: wrong sum in call {len(calls)}")
        if more:
            more = bool(slipstream.broadcast(np.array([end - begin < seconds]))[0])
    if disturber is not None:
        disturber.stop.set()
        disturber.join()
    resets = slipstream.reduce(np.array([disturber.resets if disturber is not None else 0]))
    links = [dataclasses.asdict(link) for link in slipstream.link_statistics()]
    slipstream.barrier()
    if rank == 0:
        found = {"calls": calls, "resets": int(resets[0]), "first": first, "links": links}
        print(json.dumps(found), flush=True)
    slipstream.shutdown()


if __name__ == "__main__":
    main()
