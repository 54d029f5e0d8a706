"""Ranks that are claimed again after their start has met: nobody knows whether it met with the ranks of two starts.

Shortly after the start that is likely: two jobs began together. The job is in doubt, and those who watch it are told.
Later it is likely that somebody began another job at the same place: that must not end this one, and is only logged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from slipstream.base.log import Log

__all__ = ["DOUBT_SECONDS", "SecondClaims"]

DOUBT_SECONDS = 30.0  # after the first rank had met all others
_MOST_LOGGED = 16

_log = Log("slipstream.store")


class SecondClaims:
    """Those of one store. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doubts: dict[str, str] = {}  # by epoch
        self._watchers: dict[str, Callable[[str], None]] = {}
        self._logged = 0

    def add(self, epoch: str, text: str, since_met: float, *, proven: bool) -> None:
        """A rank of ``epoch`` is claimed again, ``since_met`` seconds after it had met.

        ``proven``: the launcher's own names say that its ranks belong together.
        """
        if proven or since_met >= DOUBT_SECONDS:
            self.log(text)
            return
        with self._lock:
            self._doubts.setdefault(epoch, text)
            tell = self._watchers.pop(epoch, None)
        if tell is not None:
            tell(text)

    def log(self, text: str) -> None:
        """A process was refused, and nobody else."""
        with self._lock:
            self._logged += 1
            if self._logged > _MOST_LOGGED:
                return
        _log.warning("store: refused a process, and this job goes on: %s", text)

    def watch(self, epoch: str, tell: Callable[[str], None]) -> None:
        """Has ``tell`` called, once, on any thread, as soon as ``epoch`` is in doubt."""
        with self._lock:
            text = self._doubts.get(epoch)
            if text is None:
                self._watchers[epoch] = tell
        if text is not None:
            tell(text)

    def unwatch(self, epoch: str) -> None:
        """Nobody is told any more."""
        with self._lock:
            self._watchers.pop(epoch, None)
