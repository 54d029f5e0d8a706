"""Where survivors of a failure meet: every rank has a listener for that from the start, unused until `shrink`.

The store that the ranks met through at first may have been served by the rank that died. So each rank tells the others
at init where it listens, and the lowest rank that lives serves a store there.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.comm.listening import listen_all

__all__ = ["Meeting", "Place"]


@dataclass(frozen=True)
class Place:
    """Where a rank listens: numeric addresses, best first, and a port."""

    addresses: tuple[str, ...]
    port: int


class Meeting:
    """This rank's listeners, which share a port, and the places of all ranks."""

    def __init__(self, bind: Sequence[str], addresses: Sequence[str]) -> None:
        self._listeners = listen_all(bind, 0)
        self.place = Place(tuple(addresses), self._listeners[0].getsockname()[1])
        self.places: tuple[Place, ...] = ()

    def take(self) -> list[socket.socket]:
        """The listeners, which are the caller's from now on; none if they are closed, or have been taken."""
        listeners, self._listeners = self._listeners, []
        return listeners

    def close(self) -> None:
        """Closes the listeners. Harmless when repeated."""
        for listener in self.take():
            listener.close()
