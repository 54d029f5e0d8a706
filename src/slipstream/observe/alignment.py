"""The clock of a rank beside that of rank 0's host: how far they are apart, and how that changes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Alignment"]

_DRIFT = 10e-6  # seconds a second by which two clocks are taken to part


@dataclass
class Alignment:
    """``offset``: nanoseconds to add to this rank's monotonic clock to have the Unix time of rank 0's host.

    It was right within ``error`` (nanoseconds) at the time ``at`` of this rank's clock. It follows `take`.
    """

    offset: int
    error: int
    at: int

    def take(self, sent: int, theirs: int, received: int) -> None:
        """Rank 0 said ``theirs``, its Unix time, some time between ``sent`` and ``received`` of this rank's clock.

        What was known is kept while it is better than that, and agrees with it.
        """
        offset, error = theirs - (sent + received) // 2, (received - sent) // 2
        grown = self.error + int((received - self.at) * _DRIFT)
        if error < grown or abs(offset - self.offset) > error + grown:
            self.offset, self.error, self.at = offset, error, received
