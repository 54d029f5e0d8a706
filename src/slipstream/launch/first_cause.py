"""Which rank failed first: decided while the others still run, for their failures are often its consequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slipstream.launch.causes import Causes, Failure
from slipstream.launch.deadlines import Deadlines
from slipstream.launch.ending import Ending

__all__ = ["FirstCause"]

_SETTLE = 2.5  # seconds to learn which rank failed first, when one says that it lost another
_RECOVERY = 2.0  # seconds that a rank waits longer than the heartbeat (native/session/session.cpp)


class FirstCause:
    """Waits, after a failure, until its cause is known, and then ends the job."""

    def __init__(
        self, ending: Ending, deadlines: Deadlines, hosts: Mapping[int, str], heartbeat: float = 10.0
    ) -> None:
        """``hosts``: that of each rank, as people know it; ``heartbeat``: seconds of silence after which, and
        `_RECOVERY`, ranks lose a host."""
        self.found: Failure | None = None
        self._causes = Causes(hosts)
        self._ending = ending
        self._heartbeat = heartbeat
        self._asks_others = False  # it waits for another host to say something
        self._deadline = deadlines.add(self._settled)

    @property
    def session_failed(self) -> set[int]:
        """Ranks whose session has failed."""
        return self._causes.session_failed

    def report(self, rank: int, data: bytes) -> None:
        """Takes what a rank says of an exception, or of a session."""
        self._causes.report(rank, data)
        if self._asks_others and not self._causes.one_sided:
            self._asks_others = False
            self._deadline.set(_SETTLE)

    def finished(self, rank: int) -> None:
        """A rank has ended with code 0."""
        self._causes.finished(rank)
        if self._causes.certain:
            self._decide()

    def failed(self, rank: int, code: int, how: str, tail: Iterable[bytes]) -> None:
        """A rank has ended with ``code`` (128 + signal); ``tail``: the last lines of its standard error."""
        self._causes.failed(rank, code, how, tail)
        if self._causes.certain:
            self._decide()
        elif self._deadline.when is None:
            self._deadline.set(_SETTLE)

    def forget(self, ranks: Iterable[int]) -> None:
        """The job goes on without them."""
        self._causes.forget(ranks)

    def all_ended(self) -> None:
        """No rank can fail any more."""
        if self._deadline.when is not None:
            self._decide()

    def _settled(self) -> None:
        if self._causes.one_sided and not self._asks_others:
            self._asks_others = True
            self._deadline.set(self._heartbeat + _RECOVERY)  # other hosts notice that they have lost this one
        else:
            self._decide()

    def _decide(self) -> None:
        self._deadline.clear()
        if self._ending.begun:
            return
        self.found = self._causes.first()
        assert self.found is not None
        self._ending.fail(self.found.code)
