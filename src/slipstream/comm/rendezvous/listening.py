"""Sockets that listen."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

__all__ = ["listen_all"]

_PORT_TRIES = 16
# Bytes: what every path must carry. A start needs few packets, and learns nothing of large ones that are lost.
_SEGMENT = 536


def listen_all(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Listeners on all of the numeric addresses, at one port (0: one that is free on all). Raises OSError."""
    for _ in range(_PORT_TRIES):
        found: list[socket.socket] = []
        try:
            for address in addresses:
                found.append(_listen(address, found[0].getsockname()[1] if found else port))
            return found
        except OSError as error:
            for listener in found:
                listener.close()
            if port != 0 or not found or error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"no port is free on all of {', '.join(addresses)}")


def _listen(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a listener of its own
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)  # holds for both directions
        listener.setblocking(False)
        listener.bind((bind, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {bind} port {port}: {error.strerror}") from None
    return listener
