"""Since when each operation waits for ranks that have not called it, and which of them a warning is due for: pure."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.comm.negotiation.agreement import Key

__all__ = ["WARN", "WARN_AGAIN", "Overdue"]

WARN, WARN_AGAIN = 10.0, 60.0  # seconds without an answer of all ranks
_APART = 2.0  # seconds between two warnings: what becomes due meanwhile shares the second one


class Overdue:
    """Each operation has an age of its own, whatever else goes on. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._since: dict[Key, float] = {}
        self._warn_at: dict[Key, float] = {}
        self._again = 0.0

    def see(self, key: Key, since: float) -> None:
        """This one waits, since then at the latest."""
        before = self._since.get(key)
        if before is None or since < before:
            self._since[key] = since
            self._warn_at.setdefault(key, since + WARN)

    def since(self, key: Key) -> float:
        """When it was called, or seen here for the first time."""
        return self._since[key]

    def end(self, keys: Iterable[Key]) -> None:
        """These do not wait any more: what has such a name later is another operation."""
        for key in keys:
            self._since.pop(key, None)
            self._warn_at.pop(key, None)

    def keep(self, keys: Iterable[Key]) -> None:
        """No others wait."""
        self.end(self._since.keys() - keys)

    def older(self, than: float) -> list[Key]:
        """Those that have waited since before that, the longest first."""
        return sorted(
            (key for key, since in self._since.items() if since < than), key=self._since.__getitem__
        )

    def due(self, now: float, before: float = float("inf")) -> list[Key]:
        """Those that a warning is due for, the longest first: it is taken to be given.

        Only those that have waited since before ``before``.
        """
        if now < self._again:
            return []
        found = [key for key in self.older(before) if self._warn_at[key] <= now]
        for key in found:
            self._warn_at[key] = now + WARN_AGAIN
        if found:
            self._again = now + _APART
        return found
