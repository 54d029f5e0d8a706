"""The lock of what several threads and signal handlers change."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from slipstream.base.errors import Aborted, SlipstreamError
from slipstream.comm.membership.group import Group

__all__ = ["Guarded"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Guarded:
    """Runs the steps of a negotiator with its lock held. ``stop`` ends that where a step is broken off.

    A signal's handler may call operations while its thread is in a step: ``inside`` is true for it. ``lock`` itself is
    for what a handler may do amid a step. A ``with`` of it cannot be broken off between the lock and its block, as one
    of ``changed`` can.
    """

    def __init__(self, group: Group, stop: Callable[[BaseException], None]) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._owner = 0  # the thread that is in a step; 0: none. One field: others read it without the lock
        self._group = group
        self._stop = stop

    @property
    def inside(self) -> bool:
        """Whether a thread is in a step; with the lock held, this one."""
        return self._owner != 0

    def is_mine(self) -> bool:
        """Whether this thread is in a step, or about to begin one, or has just ended one: it has the lock.

        Then a signal's handler must not wait for what another thread does with the lock.
        """
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def run(self, step: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs a step. What breaks it off leaves things in pieces: it ends the session, and goes on."""
        with self.lock:
            self._owner = threading.get_ident()
            try:
                return step(*args, **kwargs)
            except SlipstreamError:
                raise
            except BaseException as error:
                self.end(error)
                raise
            finally:
                self._owner = 0

    def wait(self, seconds: float | None) -> None:
        """Amid a step: lets others in until something changes, or for so long."""
        self._owner = 0
        try:
            self.changed.wait(seconds)
        finally:
            self._owner = threading.get_ident()

    def end(self, error: BaseException) -> None:
        """An operation cannot be started as it has to be: no other one will be. Needs the lock."""
        rank = self._group.native.ranks[self._group.rank]
        text = f"rank {rank} was interrupted as it started an operation ({type(error).__name__}: {error})"
        with contextlib.suppress(SlipstreamError):
            self._group.session.abort(text)
        self._stop(Aborted(text))
