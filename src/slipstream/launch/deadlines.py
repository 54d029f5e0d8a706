"""Deadlines of a loop: what it does when a moment has passed."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Deadline", "Deadlines"]


class Deadline:
    """A moment that may be set; `Deadlines` calls the action once it has passed. A signal handler may set it too."""

    def __init__(self, action: Callable[[], None], clock: Callable[[], float]) -> None:
        self._action = action
        self._clock = clock
        self._when: float | None = None

    @property
    def when(self) -> float | None:
        """The moment on the clock, None if none is set."""
        return self._when

    def set(self, seconds: float) -> None:
        """Sets it ``seconds`` from now, whatever it was before."""
        self._when = self._clock() + seconds

    def clear(self) -> None:
        """The action is not called any more."""
        self._when = None

    def expire(self, now: float) -> None:
        """Calls the action if the moment has passed. The action may set the deadline again."""
        when = self._when
        if when is not None and now >= when:
            self._when = None
            self._action()


class Deadlines:
    """All deadlines of one loop, which waits no longer than for the next of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: list[Deadline] = []

    def add(self, action: Callable[[], None]) -> Deadline:
        """A new deadline, which is not set."""
        deadline = Deadline(action, self._clock)
        self._all.append(deadline)
        return deadline

    def wait(self) -> float | None:
        """Seconds until the next deadline; None if none is set."""
        moments = [when for one in self._all if (when := one.when) is not None]
        return max(0.0, min(moments) - self._clock()) if moments else None

    def expire(self) -> None:
        """Calls the actions of those that have passed, in the order in which they were added."""
        now = self._clock()
        for one in self._all:
            one.expire(now)
