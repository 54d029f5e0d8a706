"""When to write what comes at any time: soon after a quiet time, and seldom while much comes."""

from __future__ import annotations

import queue
import threading

__all__ = ["FIRST", "Pace"]

FIRST = 0.01  # seconds from what ends a quiet time to the first write


class Pace:
    """One thread writes, and waits in `wait` before it writes again; other threads say in `came` that something came.

    The pause before a write is `FIRST` seconds after a quiet time. It doubles with each write, up to ``longest``
    seconds, until nothing has come for as long as that. Without `came`, `wait` returns after ``longest``.

    >>> pace = Pace(0.25)
    >>> pace.pause
    0.01
    """

    def __init__(self, longest: float) -> None:
        self.pause = min(FIRST, longest)  # seconds
        self._longest = longest
        self._ended = threading.Event()
        self._listens = False
        # A signal's handler may call `came` within `came`: a put of this queue bears that, an Event does not.
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def ended(self) -> bool:
        """Whether `end` has been called."""
        return self._ended.is_set()

    def came(self) -> None:
        """There is something to write."""
        if self._listens:
            self._listens = False
            self._news.put(None)

    def listen(self) -> None:
        """What comes from now on ends the next `wait`. The writer calls it before it takes what there is to write."""
        while not self._news.empty():
            self._news.get()
        self._listens = True

    def wait(self, wrote: bool) -> None:
        """Returns when to write next. ``wrote``: there was something to write this time."""
        if not (wrote or self.ended or self._something_comes()):
            self.pause = min(FIRST, self._longest)
            return
        self._ended.wait(self.pause)
        self.pause = min(2 * self.pause, self._longest)

    def _something_comes(self) -> bool:
        try:
            self._news.get(timeout=self._longest)
        except queue.Empty:
            return False
        return True

    def end(self) -> None:
        """Ends the `wait` of now, and all later ones."""
        self._ended.set()
        self._news.put(None)
