"""Ranks that `slipstream run` has started meet in its store, which is told by the launcher when one of them ends."""

from __future__ import annotations

import logging
import os
from collections import Counter

from slipstream.base.errors import Timeout
from slipstream.base.excepthook import is_reporting
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.join import given_up
from slipstream.comm.rendezvous.secret import find_secret
from slipstream.comm.rendezvous.store import Store
from slipstream.comm.rendezvous.waiting import says_who_is_late

__all__ = ["PATIENCE", "rank_of", "wait_for_all"]

PATIENCE = 60.0  # seconds
_log = logging.getLogger("slipstream")
_meetings: Counter[str] = Counter()  # of this process, by what was called


def rank_of(size: int) -> int | None:
    """The rank as which the launcher has started this very process, not a parent of it, in a job of ``size`` ranks."""
    number = os.environ.get("SLIPSTREAM_RANK", "")
    ours = number.isdigit() and os.environ.get("SLIPSTREAM_SIZE") == str(size) and is_reporting()
    return int(number) if ours else None


def wait_for_all(settings: Settings, rank: int, size: int, limit: float, call: str, longer: str) -> None:
    """Returns when all ranks have called ``call`` as often as this one, or after `PATIENCE` if they may take longer.

    ``rank``: as `rank_of` says. ``limit``: seconds; ``call`` is for errors, and ``longer``: how to give the ranks more
    time. Raises PeerLost when a rank has ended, Timeout naming those that did not come, Refused when a rank is claimed
    twice.
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
        store.gather(prefix, size, min(limit, PATIENCE), lacking, longer, late)
    except BaseException as error:
        store.leave(given_up(error))
        if not isinstance(error, Timeout) or limit <= PATIENCE:
            raise
        _log.warning("rank %d goes on without having met all ranks: %s", rank, error)
    store.leave()
    _meetings[call] += 1
