"""What a rank's engine says of a session that has failed (``native/session/failure_report.h``), caught or not."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.base.errors import CODES, HEARD_NOBODY, Aborted, PeerLost, SlipstreamError
from slipstream.base.excepthook import CONSEQUENCE, OWN

__all__ = ["SessionFailure", "read"]

_MOST = 8000
_MOST_RANKS = 1 << 31


@dataclass(frozen=True)
class SessionFailure:
    """Why a session has failed.

    ``culprit``: the rank at fault, if there is one; ``told_by``: the rank that has told this one; None if it found it.
    """

    kind: type[SlipstreamError]
    culprit: int | None
    told_by: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.kind.__module__}.{self.kind.__qualname__}: {self.text}"

    def grade(self, rank: int) -> int:
        """`OWN` or `CONSEQUENCE`, where the session is that of ``rank``."""
        found = self.told_by is None and (self.kind is not PeerLost or self.culprit == rank)
        return OWN if found and not self.heard_nobody else CONSEQUENCE

    @property
    def heard_nobody(self) -> bool:
        """Whether a rank had lost all others at once: itself, as it says, but others may know better."""
        return self.kind is PeerLost and HEARD_NOBODY in self.text

    def lost(self, rank: int) -> int | None:
        """The rank whose loss, or whose `Aborted`, made the session of ``rank`` fail.

        That may be ``rank`` itself, if others have lost it and have told it so, or if it had lost all of them.
        """
        follows = self.kind in (PeerLost, Aborted) and self.grade(rank) == CONSEQUENCE
        return self.culprit if follows else None


def read(told: object) -> SessionFailure | None:
    """The failure that a record tells; None if it tells of none, or makes no sense."""
    if not isinstance(told, dict):
        return None
    code, text = told.get("code"), told.get("text")
    if type(code) is not int or not isinstance(text, str):
        return None
    culprit, told_by = _rank(told.get("rank")), _rank(told.get("told_by"))
    return SessionFailure(CODES.get(code, SlipstreamError), culprit, told_by, text[:_MOST])


def _rank(number: object) -> int | None:
    return number if type(number) is int and 0 <= number < _MOST_RANKS else None
