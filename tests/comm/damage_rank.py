"""A rank of two. Between them is a relay that knows no secret and changes what passes: argv is how, and how often."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
import threading
from typing import Any

import numpy as np

import slipstream
from slipstream.comm import job

HOW, TIMES = sys.argv[1], int(sys.argv[2])
HANDSHAKE = 200  # bytes of each direction that pass unchanged: nothing is open to damage before
ROUNDS = 12


class Relay:
    """Listens, and passes every connection on to ``port``, with a change once in a while."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.left = TIMES
        self.random = random.Random(7)
        self.wait = self.random.randrange(1, 60_000)  # bytes until the next change
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            near = self.listener.accept()[0]
            far = socket.create_connection(("127.0.0.1", self.target))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, source: socket.socket, sink: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(16 << 10):
                sink.sendall(self.changed(data) if passed >= HANDSHAKE else data)
                passed += len(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def changed(self, data: bytes) -> bytes:
        with self.lock:
            self.wait -= len(data)
            if (self.wait > 0 and HOW != "always") or self.left == 0 or len(data) < 40:
                return data
            self.wait = self.random.randrange(20_000, 200_000)
            self.left -= 1
            return self.change(data)

    def change(self, data: bytes) -> bytes:
        at = self.random.randrange(len(data) - 8)
        if HOW in ("bit", "always"):
            return data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
        if HOW == "start":  # of what arrives together: mostly a header
            at = self.random.randrange(min(40, len(data)))
            return data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
        if HOW == "swap":
            size = len(data) // 4
            return data[size : 2 * size] + data[:size] + data[2 * size :]
        if HOW == "cut":
            return data[:at] + data[at + 8 :]
        assert HOW == "repeat"
        return data[: at + 8] + data[at:]


def put_relay_between(kind: type[Relay] = Relay) -> None:
    """What this rank publishes leads to the relay."""
    exchange = job.exchange

    def published(member: Any, payload: bytes, lacking: str) -> list[bytes]:
        mine = json.loads(payload)
        if mine.get("port"):
            mine["port"] = kind(mine["port"]).port
        return exchange(member, json.dumps(mine).encode(), lacking)

    job.exchange = published  # type: ignore[assignment]


def main() -> None:
    """Sums of all sizes, each of them checked."""
    if os.environ["SLIPSTREAM_RANK"] == "1":
        put_relay_between()
    slipstream.init()
    rank = slipstream.rank()
    for turn in range(ROUNDS):
        for count in (1, 3000, 100_000, 700_000):
            x = np.arange(count, dtype=np.float64) * (rank + 1) + turn
            slipstream.all_reduce(x, out=x)
            wrong = int((x != np.arange(count, dtype=np.float64) * 3 + 2 * turn).sum())
            assert wrong == 0, f"{wrong} of {count} numbers are wrong"
    slipstream.barrier()
    print("damaged", slipstream.link_statistics()[0].damaged)
    slipstream.barrier()
    slipstream.shutdown()


if __name__ == "__main__":
    main()
