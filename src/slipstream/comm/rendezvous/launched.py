"""Ranks that `slipstream run` has started meet in its store, which is told by the launcher when one of them ends."""

from __future__ import annotations

import os
from collections import Counter

from slipstream.base.excepthook import is_reporting
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.join import given_up
from slipstream.comm.rendezvous.secret import find_secret
from slipstream.comm.rendezvous.store import Store
from slipstream.comm.rendezvous.waiting import says_who_is_late

__all__ = ["is_rank", "wait_for_all"]

_meetings: Counter[str] = Counter()  # of this process, by what was called


def is_rank(rank: int, size: int) -> bool:
    """Whether the launcher has started this very process, not a child of it, as ``rank`` of ``size``."""
    numbers = os.environ.get("SLIPSTREAM_RANK"), os.environ.get("SLIPSTREAM_SIZE")
    return numbers == (str(rank), str(size)) and is_reporting()


def wait_for_all(settings: Settings, rank: int, size: int, limit: float, call: str, longer: str) -> None:
    """Returns when all ranks have called ``call`` as often as this one.

    ``limit``: seconds; ``call``: what the ranks call, for errors, and ``longer``: how to give them more time. Raises
    PeerLost when a rank has ended, Timeout naming those that did not come, Refused when a rank is claimed twice.
    """
    if settings.store is None:
        return
    host, port = settings.store
    secret, job = find_secret(settings), settings.job
    store = Store(host, port, secret, job, settings.start_timeout, rank=rank, encrypt=settings.encrypt)
    name = f"{call} {_meetings[call] + 1}"
    try:
        prefix = f"{name}/{store.enter(name, rank, settings.host_name)}"
        store.set(f"{prefix}/{rank}", b"")
        lacking = f"every rank must call {call}"
        late = says_who_is_late(rank, size, limit, lacking)
        store.gather(prefix, size, limit, lacking, longer, late)
    except BaseException as error:
        store.leave(given_up(error))
        raise
    store.leave()
    _meetings[call] += 1
