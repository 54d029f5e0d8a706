"""What the groups of a job share while they tune: the mode, the cache, the log, and who sees to the lanes."""

from __future__ import annotations

import time
from pathlib import Path

from slipstream.base.log import Log
from slipstream.base.settings import Settings
from slipstream.comm.tuning.cache import Entry, cache_file, parse, read, remember, text_of
from slipstream.comm.tuning.candidates import Candidate, Traffic
from slipstream.comm.tuning.journal import Journal

__all__ = ["JobTuning", "what_to_tell"]

_log = Log("slipstream.tuning")


def what_to_tell(settings: Settings, rank: int, hosts: int) -> str | None:
    """What rank 0 tells the others of its cache as the job starts, for `JobTuning`. The others: nothing."""
    path = cache_file(settings.tuning_cache)
    if rank != 0 or settings.autotune == "off" or hosts < 2 or path is None:
        return None
    try:
        return text_of(entry for entry in read(path) if entry.tunes == settings.autotune)
    except (OSError, ValueError) as error:
        _log.warning(
            "the tuning cache %s is neither used nor renewed: %s (remove it: slipstream check --tuning --clear)",
            path,
            _why(error),
        )
        return None


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


class JobTuning:
    """``choices``: those of rank 0's cache, as `what_to_tell` has them; None: there are none."""

    def __init__(self, settings: Settings, rank: int, choices: str | None = None) -> None:
        self.mode = settings.autotune
        self._remembered = {entry.key: entry for entry in parse(choices)} if choices else {}
        self.first = rank == 0
        self._path: Path | None = cache_file(settings.tuning_cache)
        self._lanes = settings.lanes == "auto" and settings.dealing == "pull"
        self._owner: object = None
        self.journal = Journal(settings.autotune_log if rank == 0 else None)

    @property
    def on(self) -> bool:
        """Whether anything is tuned."""
        return self.mode != "off"

    @property
    def bits(self) -> bool:
        """Whether also what changes the order of additions is."""
        return self.mode == "on"

    def claim_lanes(self, owner: object) -> bool:
        """Whether ``owner`` may choose the number of lanes: the first that asks, if the settings leave it open."""
        if self._lanes and self._owner is None:
            self._owner = owner
        return self._lanes and self._owner is owner

    def leave_lanes(self, owner: object) -> None:
        """``owner`` does not choose the lanes: another one may."""
        if self._owner is owner:
            self._owner = None

    def remembered(self, cluster: str, traffic: Traffic) -> Entry | None:
        """What an earlier job chose, the same on all ranks."""
        return self._remembered.get((cluster, self.mode, traffic))

    def keep(self, cluster: str, traffic: Traffic, chosen: Candidate, seconds: float, before: float) -> None:
        """Writes a choice to the cache: rank 0 alone. A file that cannot be written costs a warning."""
        if not self.first or self._path is None:
            return
        way, when = chosen.way, round(time.time(), 3)
        entry = Entry(
            cluster=cluster,
            tunes=self.mode,
            magnitude=traffic.magnitude,
            wire=traffic.wire.name.lower(),
            algorithm=way.algorithm,
            chunk_bytes=way.chunk_bytes,
            reducers=way.reducers,
            lanes=chosen.lanes,
            seconds=seconds,
            before=before,
            when=when,
        )
        try:
            remember(self._path, entry)
        except (OSError, ValueError) as error:
            _log.warning("the choice is not remembered in %s: %s", self._path, _why(error))
            self._path = None
