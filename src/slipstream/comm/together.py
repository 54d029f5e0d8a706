"""Calls that are several operations, sizes and then data, say: the other ranks wait for all of them."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from slipstream.base.errors import SlipstreamError
from slipstream.comm.group import Group

__all__ = ["Together", "found_by_all"]

_MARK = "_slipstream_found_by_all"
_E = TypeVar("_E", bound=Exception)


def found_by_all(error: _E) -> _E:
    """Marks an error that every rank of the group raises at this point, so that none waits for another."""
    setattr(error, _MARK, True)
    return error


class Together:
    """``with Together(group, "all_gather"):`` around operations that belong together.

    An exception between them would leave the other ranks waiting for the rest, or taking this rank's next operation
    for it. That may be KeyboardInterrupt, what another signal handler raises, or an argument that is wrong on this
    rank alone. So it ends the session on all ranks, with the reason, and goes on. These end nothing: errors of the
    session, errors that `found_by_all` marks, and wrong arguments (ValueError, TypeError) before the first operation.
    """

    __slots__ = ("_begun", "_group", "_operation")

    def __init__(self, group: Group, operation: str) -> None:
        self._group = group
        self._operation = operation

    def __enter__(self) -> None:
        self._begun = self._group.native.begun

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, SlipstreamError) or getattr(error, _MARK, False):
            return
        how = f"was interrupted inside {self._operation} ({type(error).__name__})"
        if isinstance(error, ValueError | TypeError):
            if self._group.native.begun == self._begun:
                return
            how = f"gave up inside {self._operation} ({type(error).__name__}: {error})"
        rank = self._group.native.ranks[self._group.rank]
        self._group.session.abort(
            f"rank {rank} {how}, which the other ranks can not complete without it: leave the job and join it anew"
        )
