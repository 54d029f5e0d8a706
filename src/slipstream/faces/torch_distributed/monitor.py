"""`monitored_barrier`: a barrier over the torch store, which can fail without harm to the group.

Rank 0 of the group waits for a sign of every other rank and then answers; so it can say which ranks did not come.
"""

from __future__ import annotations

import json
import time
import weakref
from datetime import timedelta
from typing import Any

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership.group import Group

__all__ = ["monitored_barrier"]

_counts: weakref.WeakKeyDictionary[Group, int] = weakref.WeakKeyDictionary()


def monitored_barrier(store: Any, group: Group, timeout: float, wait_all_ranks: bool) -> None:
    """Returns once all ranks of ``group`` are here; SlipstreamError after ``timeout`` seconds.

    The error on rank 0 names the ranks that did not come: all of them with ``wait_all_ranks``, else the first. Other
    ranks get rank 0's reason.
    """
    number = _counts[group] = _counts.get(group, 0) + 1
    key = f"slipstream/monitored_barrier/{number}"
    deadline = time.monotonic() + timeout
    if group.rank:
        _come(store, group, key, timeout, wait_all_ranks)
        return
    if timeout <= 0:
        raise SlipstreamError(
            f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {timeout * 1000:.0f} ms."
        )
    missing = []
    for rank in range(1, group.size):
        if not _is_set(store, f"{key}/{rank}", max(deadline - time.monotonic(), 0.01)):
            missing.append(rank)
            if not wait_all_ranks:
                break
    store.set(f"{key}/answer", json.dumps(missing))
    if missing:
        raise SlipstreamError(_reason(missing, timeout, wait_all_ranks))
    _forget(store, group, key, number)


def _come(store: Any, group: Group, key: str, timeout: float, wait_all_ranks: bool) -> None:
    store.set(f"{key}/{group.rank}", "here")
    if not _is_set(store, f"{key}/answer", timeout):
        raise SlipstreamError(
            f"Rank {group.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
            f"from rank 0: Timed out after {timeout:g} s. Please check rank 0 logs for faulty rank."
        )
    missing = json.loads(store.get(f"{key}/answer"))
    if missing:
        raise SlipstreamError(
            f"Rank {group.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
            f"from rank 0. Please check rank 0 logs for faulty rank. {_reason(missing, timeout, wait_all_ranks)}"
        )


def _reason(missing: list[int], timeout: float, all_ranks: bool) -> str:
    ranks = ("Ranks " if all_ranks else "Rank ") + ", ".join(map(str, missing))
    return f"[Rank 0]: {ranks} failed to pass monitoredBarrier in {timeout * 1000:.0f} ms"


def _is_set(store: Any, key: str, timeout: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=timeout))
    except RuntimeError:
        return False
    return True


def _forget(store: Any, group: Group, key: str, number: int) -> None:
    """Deletes the keys of the barrier before, which all have left."""
    if number > 1:
        before = key.rsplit("/", 1)[0] + f"/{number - 1}"
        for name in ("answer", *map(str, range(1, group.size))):
            store.delete_key(f"{before}/{name}")
