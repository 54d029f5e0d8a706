"""Where the actors of a group meet: Ray's store of keys and values, which all of its processes have.

It carries an address and, unless the job has a secret of its own, a secret made for this group. Who can read that store
can have the actors run anything, so it gives away no more than Ray itself does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from ray.experimental import internal_kv

from slipstream.base.errors import Timeout
from slipstream.base.settings import Settings
from slipstream.comm.membership import job as jobs

__all__ = ["enter"]

_NAMESPACE = b"slipstream"
_PAUSE = 0.02  # seconds between two looks at Ray's store, which nobody can wait at


class _Store:
    """Ray's store as `slipstream.comm.membership.job.enter` takes one: with the methods of torch.distributed's.

    ``name``: of the group, a part of each key.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._written: set[str] = set()

    def set(self, key: str, value: str) -> None:
        self._written.add(key)
        internal_kv._internal_kv_put(self._full(key), value.encode(), overwrite=True, namespace=_NAMESPACE)

    def get(self, key: str) -> bytes:
        found = internal_kv._internal_kv_get(self._full(key), namespace=_NAMESPACE)
        if found is None:
            raise RuntimeError(f"Ray's store has no {key}")
        return bytes(found)

    def check(self, keys: Sequence[str]) -> bool:
        return all(internal_kv._internal_kv_exists(self._full(key), namespace=_NAMESPACE) for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """RuntimeError, as torch.distributed has it, if a key does not come in time."""
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Ray's store did not get {', '.join(keys)}")
            time.sleep(_PAUSE)

    def add(self, key: str, value: int) -> int:
        """Only for keys of one rank alone: Ray's store cannot add."""
        before = int(self.get(key)) if self.check([key]) else 0
        self.set(key, str(before + value))
        return before + value

    def clear(self) -> None:
        """Takes back all that this process has written, so that a group of this name may be made again."""
        for key in self._written:
            internal_kv._internal_kv_del(self._full(key), namespace=_NAMESPACE)

    def _full(self, key: str) -> str:
        return f"{self._name}/{key}"


def enter(name: str, rank: int, size: int) -> jobs.Job:
    """Joins the job of the group ``name``, which all its actors do. Raises as `slipstream.init`."""
    settings = Settings.from_environment()
    store = _Store(name)
    try:
        if settings.secret is None and settings.secret_file is None:
            settings = replace(settings, secret=_secret(store, rank, settings.start_timeout))
        return jobs.enter(rank=rank, size=size, store=store, settings=settings)
    finally:
        # All have met, or this one has given up. What a killed actor leaves is overwritten by the next of its rank.
        store.clear()


def _secret(store: _Store, rank: int, limit: float) -> bytes:
    key = "secret"
    if rank == 0:
        made = os.urandom(32)
        store.set(key, made.hex())
        return made
    try:
        store.wait([key], timedelta(seconds=limit))
    except RuntimeError:
        raise Timeout(
            f"rank {rank} of a collective group of Ray: rank 0 did not come within {limit:g} s. Does every actor make "
            "the group, with the same name? To wait longer, raise SLIPSTREAM_START_TIMEOUT"
        ) from None
    return bytes.fromhex(store.get(key).decode())
