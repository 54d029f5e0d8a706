"""Which rank failed first: decided while the others still run, for their failures are often its consequences."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.launch.causes import Causes, Failure
from slipstream.launch.deadlines import Deadlines
from slipstream.launch.ending import Ending

__all__ = ["FirstCause"]

_SETTLE = 2.5  # seconds to learn which rank failed first, when one says that it lost another


class FirstCause:
    """Waits, after a failure, until its cause is known, and then ends the job."""

    def __init__(self, ending: Ending, deadlines: Deadlines) -> None:
        self.found: Failure | None = None
        self._causes = Causes()
        self._ending = ending
        self._deadline = deadlines.add(self._decide)

    def report(self, rank: int, data: bytes) -> None:
        """Takes what a rank says of an exception."""
        self._causes.report(rank, data)

    def failed(self, rank: int, code: int, how: str, tail: Iterable[bytes]) -> None:
        """A rank has ended with ``code`` (128 + signal); ``tail``: the last lines of its standard error."""
        self._causes.failed(rank, code, how, tail)
        if self._causes.certain:
            self._decide()
        elif self._deadline.when is None:
            self._deadline.set(_SETTLE)

    def all_ended(self) -> None:
        """No rank can fail any more."""
        if self._deadline.when is not None:
            self._decide()

    def _decide(self) -> None:
        self._deadline.clear()
        if self._ending.begun:
            return
        self.found = self._causes.first()
        assert self.found is not None
        self._ending.fail(self.found.code)
