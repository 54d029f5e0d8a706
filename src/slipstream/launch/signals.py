"""Signals to the launcher or an agent: an interrupt, or the end of a child."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
from collections.abc import Callable

__all__ = ["SignalWatch"]

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalWatch:
    """Handles signals until it is closed.

    ``interrupt`` gets the number of a signal that is to end this process and all that it started. The handler calls
    it, between any two steps of the loop, also while that waits for a stuck terminal. ``woken`` is called by the loop
    after any signal, SIGCHLD too.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        interrupt: Callable[[int], None],
        woken: Callable[[], None],
    ) -> None:
        self._woken = woken
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda number, _: interrupt(number)) for number in _INTERRUPTS
        }
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        selector.register(self._reader, selectors.EVENT_READ, self._on_wake)

    def _on_wake(self, *_: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        self._woken()

    def close(self) -> None:
        """Restores the handlers that there were before."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for end in (self._reader, self._writer):
            end.close()
