"""What a rank says while it waits for others at the start of a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from slipstream.base.log import Log
from slipstream.comm.rendezvous.store import Late, named

__all__ = ["says_who_is_late"]

_log = Log("slipstream")


def says_who_is_late(rank: int, size: int, limit: float, lacking: str) -> Late:
    """For `Store.gather`: the first rank of those that have come warns of those that have not, for all.

    ``limit``: seconds until the ranks give up; ``lacking``: what those that are late have not done.
    """

    def late(missing: Sequence[int], seconds: float) -> None:
        if rank != min(set(range(size)).difference(missing), default=0):
            return
        text = f"has waited {seconds:.0f} s for {named(missing)} of {size}: {lacking}. It waits {limit:g} s at most"
        if _log.is_heard():
            _log.warning("%s", text)
        else:  # those that show messages are set up when the job has started
            sys.stderr.write(f"slipstream: rank {rank}: {text}\n")

    return late
