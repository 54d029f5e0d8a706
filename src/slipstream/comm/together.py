"""Calls that are several operations, sizes and then data, say: the other ranks wait for all of them."""

from __future__ import annotations

from types import TracebackType

from slipstream.base.errors import SlipstreamError
from slipstream.comm.group import Group

__all__ = ["Together"]

_NOT_INTERRUPTED = (SlipstreamError, ValueError, TypeError)


class Together:
    """``with Together(group, "all_gather"):`` around operations that belong together.

    An exception that breaks in between them (KeyboardInterrupt, or what another signal handler raises) would leave
    the other ranks waiting for the rest, or taking this rank's next operation for it. So it ends the session on all
    ranks, with the reason, and goes on. Errors of the session, and wrong arguments (ValueError, TypeError), which
    are found on all ranks alike, end nothing.
    """

    __slots__ = ("_group", "_operation")

    def __init__(self, group: Group, operation: str) -> None:
        self._group = group
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, _NOT_INTERRUPTED):
            return
        rank = self._group.native.ranks[self._group.rank]
        self._group.session.abort(
            f"rank {rank} was interrupted inside {self._operation} ({type(error).__name__}), which the other ranks "
            f"can not complete without it: leave the job and join it anew"
        )
