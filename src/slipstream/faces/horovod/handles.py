"""Handles: the integers that Horovod's asynchronous operations return, and the works behind them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

__all__ = [
    "Grouped",
    "PendingResult",
    "claim_name",
    "forget_all",
    "give",
    "poll",
    "synchronize",
    "unclaim_name",
]

# (operation, process set id, name) of what is in flight
Key = tuple[str, int | None, str]


class PendingResult:
    """One running operation: the engine's work, and how to make its result when it is done."""

    __slots__ = ("finish", "key", "result", "work")

    def __init__(
        self, work: Any, result: Any, key: Key | None = None, finish: Callable[[], None] | None = None
    ) -> None:
        self.work = work
        self.result = result
        self.key = key
        self.finish = finish

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        if not self.work.done():
            return False
        self.release()
        return True

    def wait(self) -> Any:
        """Waits for the operation and returns its result; raises what the engine raises."""
        try:
            self.work.wait()
        finally:
            if (
                self.key is not None and self.work.done()
            ):  # it is not where a signal handler has raised an exception
                self.release()
        if self.finish is not None:
            self.finish()
            self.finish = None
        return self.result

    def release(self) -> None:
        """Lets the name be used again."""
        unclaim_name(self.key)
        self.key = None


class Grouped:
    """Several operations behind one handle; the result is what ``collect`` makes of the list of theirs."""

    __slots__ = ("collect", "key", "parts")

    def __init__(
        self, parts: list[PendingResult], key: Key | None = None, collect: Callable[[list[Any]], Any] = list
    ) -> None:
        self.parts = parts
        self.key = key
        self.collect = collect

    def done(self) -> bool:
        """Whether all parts are done."""
        if not all(part.done() for part in self.parts):
            return False
        self.release()
        return True

    def wait(self) -> Any:
        """Waits for all parts, in order; returns what ``collect`` makes of their results."""
        try:
            return self.collect([part.wait() for part in self.parts])
        finally:
            self.done()  # which lets go of the name

    def release(self) -> None:
        """Lets the name be used again."""
        unclaim_name(self.key)
        self.key = None


_numbers = itertools.count()
_pending: dict[int, PendingResult | Grouped] = {}
_names: set[Key] = set()


def claim_name(operation: str, process_set_id: int | None, name: str) -> Key:
    """Takes a name for an operation that starts; ValueError while another of that name is in flight.

    An operation is in flight until its handle is synchronised, or `poll` said that it is done.
    """
    key = (operation, process_set_id, name)
    if key in _names:
        raise ValueError(
            f"Requested to {operation} a tensor with the same name as another tensor that is currently "
            f"being processed: {name!r}. Synchronize the first, or use another name."
        )
    _names.add(key)
    return key


def unclaim_name(key: Key | None) -> None:
    """Gives a name back; None is no name."""
    if key is not None:
        _names.discard(key)


def give(pending: PendingResult | Grouped) -> int:
    """The handle of an operation that has been started."""
    handle = next(_numbers)
    _pending[handle] = pending
    return handle


def poll(handle: int) -> bool:
    """Whether the operation of this handle is done; ValueError when there is no such handle.

    >>> handle = hvd.allreduce_async(torch.ones(2))
    >>> done = hvd.poll(handle)  # does not wait
    >>> result = hvd.synchronize(handle)
    """
    pending = _pending.get(handle)
    if pending is None:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return pending.done()


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous operation, frees its handle and returns its result.

    The result is the tensor (a list for grouped operations; the tensor and the received splits for alltoall).
    Returns None for a handle that is not in use. Raises SlipstreamError when the operation failed. When a signal
    handler raises an exception here, the operation goes on, and may be synchronised again.

    >>> hvd.synchronize(hvd.allreduce_async(torch.ones(2), op=hvd.Sum))
    tensor([2., 2.])
    """
    pending = _pending.get(handle)
    if pending is None:
        return None
    try:
        return pending.wait()
    finally:
        if pending.done():
            _pending.pop(handle, None)


def forget_all() -> None:
    """Called by shutdown: handles that nobody synchronised lead nowhere now."""
    _pending.clear()
    _names.clear()
