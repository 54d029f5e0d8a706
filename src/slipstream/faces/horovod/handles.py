"""Handles: the integers that Horovod's asynchronous operations return, and the works behind them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.negotiator import Negotiated, negotiator_of
from slipstream.faces.horovod.process_sets import ProcessSet

__all__ = ["Grouped", "Named", "PendingResult", "forget_all", "give", "poll", "start", "synchronize"]

# (operation, process set id, name) of what is in flight
Key = tuple[str, int | None, str]


class PendingResult:
    """One running operation: the engine's work, and how to make its result when it is done."""

    __slots__ = ("finish", "result", "work")

    def __init__(self, work: Any, result: Any, finish: Callable[[], None] | None = None) -> None:
        self.work = work
        self.result = result
        self.finish = finish

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return bool(self.work.done())

    def wait(self) -> Any:
        """Waits for the operation and returns its result; raises what the engine raises."""
        self.work.wait()
        if self.finish is not None:
            self.finish()
            self.finish = None
        return self.result


class Grouped:
    """Several operations behind one handle; the result is what ``collect`` makes of the list of theirs."""

    __slots__ = ("collect", "parts")

    def __init__(self, parts: list[PendingResult], collect: Callable[[list[Any]], Any] = list) -> None:
        self.parts = parts
        self.collect = collect

    def done(self) -> bool:
        """Whether all parts are done."""
        return all(part.done() for part in self.parts)

    def wait(self) -> Any:
        """Waits for all parts, in order; returns what ``collect`` makes of their results."""
        return self.collect([part.wait() for part in self.parts])


class Named:
    """An operation that has a name, which nothing else of its kind can use until it is done."""

    __slots__ = ("_key", "_negotiated")

    def __init__(self, negotiated: Negotiated, key: Key) -> None:
        self._negotiated = negotiated
        self._key = key

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        if not self._negotiated.done():
            return False
        _names.discard(self._key)
        return True

    def wait(self) -> Any:
        """Waits for the operation and returns its result; raises its error."""
        try:
            return self._negotiated.wait()
        finally:
            self.done()  # it is not where a signal handler has raised an exception


Started = PendingResult | Grouped | Named
_Begun = TypeVar("_Begun", PendingResult, Grouped)


def start(
    kind: str,
    name: str | None,
    process_set: ProcessSet,
    facts: Callable[[], str],
    begin: Callable[[ProcessSet], _Begun],
) -> _Begun | Named:
    """Starts an operation by ``begin``: at once if it has no name, else when all ranks have called it.

    ``kind``: Horovod's name of the operation; ``facts``: its arguments in words, as far as all ranks must give the
    same. ``begin`` gets the process set to use. ValueError while another operation of the kind has the name.
    """
    if name is None:
        return begin(process_set)
    if not name.isascii():
        name.encode()  # ValueError where it is no text
    group = process_set.group
    request = Request(kind, name, facts())
    key = _claim_name(kind, process_set.process_set_id, name)
    try:
        negotiated = negotiator_of(group).submit(request, lambda own: begin(process_set.on(own)))
    except BaseException:
        _names.discard(key)
        raise
    return Named(negotiated, key)


_numbers = itertools.count()
_pending: dict[int, Started] = {}
_names: set[Key] = set()


def _claim_name(operation: str, process_set_id: int | None, name: str) -> Key:
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


def give(pending: Started) -> int:
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
