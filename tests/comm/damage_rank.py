"""A rank of two. A relay that knows no secret changes what passes: damage_rank.py HOW TIMES near|apart|reducer

near: it is between the two ranks. apart: so it is, and at an address of its own, so that they are two hosts to each
other. reducer: it is between both and their reducer, at such an address.
"""

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
from slipstream.comm.membership import job, opening
from slipstream.comm.reducers import client as reducers

HOW, TIMES = sys.argv[1], int(sys.argv[2])
WHERE = sys.argv[3] if len(sys.argv) > 3 else "near"
HANDSHAKE = 200  # bytes of each direction that pass unchanged: nothing is open to damage before
ROUNDS = 12
RELAYS: list[Relay] = []


class Relay:
    """Listens, and passes every connection on to ``port``, with a change once in a while.

    It listens and calls at the address ``at``: one of 127.0.0.0/8, of which both ends take 127.0.0.1 for themselves.
    """

    def __init__(self, port: int, at: str = "127.0.0.1", listens: int = 0) -> None:
        self.target, self.at = port, at
        self.left = TIMES
        self.random = random.Random(7)
        self.wait = self.random.randrange(1, 60_000)  # bytes until the next change
        self.lock = threading.Lock()
        self.listener = socket.create_server((at, listens), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            near = self.listener.accept()[0]
            far = socket.create_connection(("127.0.0.1", self.target), source_address=(self.at, 0))
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


def put_relay_between(kind: type[Relay] = Relay, at: str = "127.0.0.1") -> None:
    """What this rank publishes leads to the relay."""
    exchange = opening.exchange

    def published(member: Any, payload: bytes, lacking: str) -> list[bytes]:
        mine = json.loads(payload)
        if mine.get("port"):
            mine["port"], mine["addresses"] = kind(mine["port"], at).port, [at]
        return exchange(member, json.dumps(mine).encode(), lacking)

    opening.exchange = published  # type: ignore[assignment]


def put_relay_before_reducer(at: str) -> None:
    """What this rank tells of the reducer leads to the relay, which has the port of the reducer's session.

    It changes nothing until `main` says so: what measures the reducers at the start is no sum that anybody looks at.
    """
    register = reducers.register

    def registered(*arguments: Any, **options: Any) -> int:
        incarnation = register(*arguments, **options)
        RELAYS.append(Relay(incarnation >> 48, at, incarnation >> 48))
        RELAYS[0].left = 0
        return incarnation

    reducers.register = registered
    reducers.resolve = lambda host: [at]


def main() -> None:
    """Sums of all sizes, each of them checked."""
    if WHERE == "reducer" and os.environ["SLIPSTREAM_RANK"] == "0":
        put_relay_before_reducer("127.0.0.2")
    elif WHERE != "reducer" and os.environ["SLIPSTREAM_RANK"] == "1":
        put_relay_between(at="127.0.0.2" if WHERE == "apart" else "127.0.0.1")
    slipstream.init()
    for relay in RELAYS:
        relay.left = TIMES
    rank = slipstream.rank()
    for turn in range(ROUNDS):
        for count in (1, 3000, 100_000, 700_000):
            x = np.arange(count, dtype=np.float64) * (rank + 1) + turn
            slipstream.all_reduce(x, out=x)
            wrong = int((x != np.arange(count, dtype=np.float64) * 3 + 2 * turn).sum())
            assert wrong == 0, f"{wrong} of {count} numbers are wrong"
    slipstream.barrier()
    print("damaged", slipstream.link_statistics()[0].damaged)
    for state in job.current().reducers.states():
        assert state["used"], state
        assert state["sent"] > 1 << 20, state
        assert state["lost"] == 0, state
    slipstream.barrier()
    slipstream.shutdown()


if __name__ == "__main__":
    main()
