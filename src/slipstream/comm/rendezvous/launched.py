"""Ranks that `slipstream run` has started meet in its store, which is told by the launcher when one of them ends."""

from __future__ import annotations

import itertools
import os

from slipstream.base.excepthook import is_reporting
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.secret import find_secret
from slipstream.comm.rendezvous.store import Store
from slipstream.comm.rendezvous.waiting import says_who_is_late

__all__ = ["is_rank", "wait_for_all"]

_turns = itertools.count(1)


def is_rank(rank: int, size: int) -> bool:
    """Whether the launcher has started this very process, not a child of it, as ``rank`` of ``size``."""
    numbers = os.environ.get("SLIPSTREAM_RANK"), os.environ.get("SLIPSTREAM_SIZE")
    return numbers == (str(rank), str(size)) and is_reporting()


def wait_for_all(settings: Settings, rank: int, size: int, limit: float, call: str, longer: str) -> None:
    """Returns when all ranks have come here as often as this one.

    ``limit``: seconds; ``call``: what the ranks call, for errors, and ``longer``: how to give them more time. Raises
    PeerLost when a rank has ended, Timeout naming those that did not come, Refused when a rank is claimed twice.
    """
    if settings.store is None:
        return
    host, port = settings.store
    secret, job = find_secret(settings), settings.job
    store = Store(host, port, secret, job, settings.start_timeout, rank=rank, encrypt=settings.encrypt)
    name = f"{call} {next(_turns)}"
    try:
        prefix = f"{name}/{store.enter(name, rank, settings.host_name)}"
        store.set(f"{prefix}/{rank}", b"")
        lacking = f"every rank must call {call}"
        late = says_who_is_late(rank, size, limit, lacking)
        store.gather(prefix, size, limit, lacking, longer, late)
    except BaseException:
        store.leave("it gave up")
        raise
    store.leave()
