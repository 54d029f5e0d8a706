"""How long a caller that waits looks for its peers before it sleeps.

A rank that sleeps is woken by a message, which takes as long as several small operations. A rank that looks yields its
core in between, so ranks that share a core take turns. But it uses the time that its control group may have, if that
is limited, and no other rank of it then has that time.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Patience", "patience"]

_MOST_RANKS_A_CORE = 4  # beyond, a turn of all that look takes longer than to be woken


class Patience(NamedTuple):
    """Microseconds: in any call, in a small call over shared memory, and in the kernel on behalf of sockets.

    ``held``: nanoseconds for which a caller keeps its core before it yields it. ``relays``: small broadcasts and
    reductions go along trees, in which the root of a broadcast waits for nobody. Where each rank has a core, a board
    (native/boards), on which all meet, takes less time.
    """

    call: int
    small_call: int
    sockets: int
    held: int = 1000
    relays: bool = False


def patience(ranks: int, cores: int, quota: float | None) -> Patience:
    """``ranks`` of a host that may run on ``cores``, with ``quota`` processors' time a second (None: all of it)."""
    if quota is not None and quota < ranks:
        return Patience(0, 10, 0)
    if ranks <= cores:
        return Patience(50, 50, 50)
    if ranks <= _MOST_RANKS_A_CORE * cores:
        return Patience(200, 1000, 0, held=300, relays=True)
    return Patience(0, 1000, 0, held=300)
