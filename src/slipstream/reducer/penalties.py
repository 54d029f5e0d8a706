"""Who has to wait before a reducer takes its next job: hosts whose jobs broke the rules. Pure: it has no clock."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIRST", "MOST", "Penalties"]

FIRST = 1.0  # seconds that the first fault costs; every further one twice as many
MOST = 60.0
_MEMORY = 600.0  # seconds after a penalty's end until it is forgotten
_HOSTS = 1024  # that are remembered; then the one whose penalty ended first is forgotten


@dataclass(frozen=True)
class _Penalty:
    since: float
    seconds: float
    why: str

    @property
    def until(self) -> float:
        return self.since + self.seconds


class Penalties:
    """Of hosts, by address. ``now``: seconds by any clock that does not run backwards."""

    def __init__(self) -> None:
        self._known: dict[str, _Penalty] = {}

    def fault(self, host: str, why: str, begun: float, now: float) -> float:
        """A job of ``host`` that began then broke the rules: ``why``. The seconds that its next one has to wait.

        0: it had to wait since then, so this is no further fault.
        """
        known = self._known.get(host)
        if known is not None and begun < known.since:
            return 0.0
        again = known is not None and now < known.until + _MEMORY
        seconds = min(2 * known.seconds, MOST) if known is not None and again else FIRST
        if known is None and len(self._known) >= _HOSTS:
            del self._known[min(self._known, key=lambda one: self._known[one].until)]
        self._known[host] = _Penalty(now, seconds, why)
        return seconds

    def left(self, host: str, now: float) -> tuple[float, str]:
        """The seconds that a job of ``host`` still has to wait, 0 for none, and why."""
        known = self._known.get(host)
        return (0.0, "") if known is None else (max(known.until - now, 0.0), known.why)
