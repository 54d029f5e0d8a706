"""The lock of what several threads and signal handlers change."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership.group import Group

__all__ = ["Guarded"]


class Guarded:
    """Holds the negotiator's lock. What breaks that off leaves things in pieces: it ends the session.

    A signal's handler may call operations while its thread is in here: ``inside`` is true for it.
    """

    def __init__(self, group: Group) -> None:
        self.changed = threading.Condition()
        self.inside = False
        self._thread = 0
        self._group = group

    def is_mine(self) -> bool:
        """Whether this thread is in here."""
        return self.inside and self._thread == threading.get_ident()

    def __enter__(self) -> None:
        self.changed.acquire()
        self.inside = True
        self._thread = threading.get_ident()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.inside = False
        self.changed.release()
        if error is not None and not isinstance(error, SlipstreamError):
            rank = self._group.native.ranks[self._group.rank]
            with contextlib.suppress(SlipstreamError):
                self._group.session.abort(
                    f"rank {rank} was interrupted as it started a named operation ({type(error).__name__}: {error})"
                )
