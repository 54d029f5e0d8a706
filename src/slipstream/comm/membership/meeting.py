"""Where survivors of a failure meet: every rank has a listener for that from the start, unused until `shrink`.

The store that the ranks met through at first may have been served by the rank that died. So each rank tells the others
at init where it listens, and the lowest rank that lives serves a store there.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.comm.rendezvous.listening import listen_all

__all__ = ["Meeting", "MeetingPlace", "is_gone"]


class MeetingPlace(NamedTuple):
    """Where a rank listens: numeric addresses, best first, and a port."""

    addresses: tuple[str, ...]
    port: int


class Meeting:
    """This rank's listeners, which share a port, and the places of all ranks."""

    def __init__(self, bind: Sequence[str], addresses: Sequence[str]) -> None:
        self._listeners = listen_all(bind, 0)
        self.place = MeetingPlace(tuple(addresses), self._listeners[0].getsockname()[1])
        self.places: tuple[MeetingPlace, ...] = ()

    def move(self) -> Meeting:
        """A meeting that has the listeners from now on; this one has none."""
        moved = copy.copy(self)
        self._listeners = []
        return moved

    def share(self) -> list[socket.socket]:
        """Duplicates of the listeners, which are the caller's; none if they are closed, or have moved."""
        return [listener.dup() for listener in self._listeners]

    def close(self) -> None:
        """Closes the listeners. Harmless when repeated."""
        while self._listeners:
            self._listeners.pop().close()


def is_gone(place: MeetingPlace, seconds: float) -> bool:
    """Whether nobody listens there any more: all addresses refuse. Silence (for ``seconds``) proves nothing."""
    for address in place.addresses:
        try:
            socket.create_connection((address, place.port), seconds).close()
            return False
        except ConnectionRefusedError:
            pass
        except OSError:
            return False
    return True
