"""One end of a measurement on a host: ``python -m slipstream.lab.stream``, no imports of ours, so that it starts fast.

stream.py take ADDRESS FLOWS WARM SECONDS   prints its port, takes FLOWS connections, prints their rates as JSON
stream.py give ADDRESS PORT FLOWS           sends to them as fast as it can until they are closed
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import time

_BLOCK = 1 << 20
_PATIENCE = 30.0


def take(address: str, flows: int, warm: float, seconds: float) -> None:
    """Counts what arrives in ``seconds`` after ``warm``; prints a list of {ports: [source, target], rate: bits/s}."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        print(listener.getsockname()[1], flush=True)
        listener.settimeout(_PATIENCE)
        sockets = [listener.accept()[0] for _ in range(flows)]
    selector = selectors.DefaultSelector()
    for sock in sockets:
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)
    counts = dict.fromkeys(sockets, 0)
    buffer = bytearray(_BLOCK)
    start = time.monotonic() + warm
    _receive(selector, counts, buffer, start)
    before, start = dict(counts), time.monotonic()
    _receive(selector, counts, buffer, start + seconds)
    took = time.monotonic() - start
    found = []
    for sock in sockets:
        ports = [sock.getpeername()[1], sock.getsockname()[1]]
        found.append({"ports": ports, "rate": 8 * (counts[sock] - before[sock]) / took})
    print(json.dumps(found), flush=True)


def _receive(
    selector: selectors.BaseSelector, counts: dict[socket.socket, int], buffer: bytearray, until: float
) -> None:
    while (left := until - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            with contextlib.suppress(BlockingIOError):
                counts[sock] += sock.recv_into(buffer)


def give(address: str, port: int, flows: int) -> None:
    """Sends on ``flows`` connections until the other side closes them."""
    selector = selectors.DefaultSelector()
    for _ in range(flows):
        sock = socket.create_connection((address, port), timeout=_PATIENCE)
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_WRITE)
    block = bytes(_BLOCK)
    while selector.get_map():
        for key, _ in selector.select(_PATIENCE):
            sock = key.fileobj  # type: ignore[assignment]
            try:
                sock.send(block)
            except BlockingIOError:
                continue
            except OSError:  # the receiver has what it wants
                selector.unregister(sock)
                sock.close()


if __name__ == "__main__":
    try:
        if sys.argv[1] == "take":
            take(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
        else:
            give(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    except OSError as error:  # a cable that is out: whoever measures says which hosts it was
        sys.exit(f"{sys.argv[1]} at {sys.argv[2]}: {error}")
