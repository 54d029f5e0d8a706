"""The errors slipstream raises.

    SlipstreamError (RuntimeError)
      PeerLost        a rank died or fell silent; .rank and .host say which
      Mismatch        ranks disagree about what they run
      Timeout         something did not happen in time (also a TimeoutError)
      Refused         a connection was not accepted: wrong secret, job or version
      Aborted         another rank, or shutdown, ended the session

Wrong arguments are ``ValueError`` or ``TypeError``, as everywhere in Python.
"""

from __future__ import annotations

__all__ = ["Aborted", "Mismatch", "PeerLost", "Refused", "SlipstreamError", "Timeout"]


class SlipstreamError(RuntimeError):
    """Base of everything that goes wrong while a job runs."""


class PeerLost(SlipstreamError):
    """A rank is gone or has fallen silent.

    ``rank`` is its number in the job (-1 when unknown), ``host`` its host name or address ("" when unknown).
    """

    def __init__(self, text: str, rank: int = -1, host: str = "") -> None:
        super().__init__(text)
        self.rank = rank
        self.host = host


class Mismatch(SlipstreamError):
    """Ranks disagree: shape, dtype, operation, order or size differ."""


class Timeout(SlipstreamError, TimeoutError):
    """Something did not happen within its time limit."""


class Refused(SlipstreamError):
    """A connection was refused: wrong secret, other job, other version, or a stranger."""


class Aborted(SlipstreamError):
    """A rank called ``Group.abort``, left or was interrupted while operations ran; or ``shrink`` was refused."""


HEARD_NOBODY = "has heard from no other host for"
"""In the text of a `PeerLost` that names the rank which has found it: all others were silent at once."""

# As the engine numbers them (native/base/error.h); others are a SlipstreamError, or the caller's ValueError.
CODES: dict[int, type[SlipstreamError]] = {1: PeerLost, 2: Mismatch, 3: Timeout, 4: Refused, 5: Aborted}
