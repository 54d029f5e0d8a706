"""Handles: the integers that Horovod's asynchronous operations return, and the works behind them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from slipstream.base.errors import SlipstreamError
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.negotiated import Negotiated, Part, Pending
from slipstream.comm.negotiation.negotiator import negotiator_of
from slipstream.faces.horovod.process_sets import ProcessSet

__all__ = [
    "Grouped",
    "Named",
    "PendingResult",
    "forget_all",
    "give",
    "may_take_part",
    "poll",
    "start",
    "synchronize",
    "take_part",
]


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

    def __init__(
        self, parts: Sequence[PendingResult | Named], collect: Callable[[list[Any]], Any] = list
    ) -> None:
        self.parts = parts
        self.collect = collect

    def done(self) -> bool:
        """Whether all parts are done."""
        return all(part.done() for part in self.parts)

    def wait(self) -> Any:
        """Waits for all parts, in order; returns what ``collect`` makes of their results."""
        return self.collect([part.wait() for part in self.parts])


class Named:
    """An operation that has a name: nothing else of its kind can have it before it is done.

    If it has a handle, then not before that is synchronised, or `poll` said that it is done.
    """

    __slots__ = ("__weakref__", "_negotiated", "has_handle")

    def __init__(self, negotiated: Negotiated) -> None:
        self._negotiated = negotiated
        self.has_handle = False

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        if not self._negotiated.done():
            return False
        self.has_handle = False
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
    name: str | None,
    process_set: ProcessSet,
    request: Callable[[str], Request],
    begin: Callable[[ProcessSet], _Begun],
    part: Callable[[], Part] | None = None,
    sync: bool = False,
) -> _Begun | Named:
    """Starts an operation by ``begin``: at once if it has no name, else when all ranks have called it.

    ``request`` makes of the name what the ranks compare. ``begin`` gets the process set to use. ``part``: of a buffer,
    if the request has a sum. ``sync``: the caller waits for it at once. ValueError while another operation of the kind
    has the name.
    """
    if name is None:
        return begin(process_set)
    if not name.isascii():
        name.encode()  # ValueError where it is no text
    asked = request(name)
    key = (asked.kind, process_set.process_set_id, name)
    before = _named.get(key)
    if before is not None and before.has_handle:
        raise ValueError(
            f"Requested to {asked.kind} a tensor with the same name as another tensor that is currently being "
            f"processed: {name!r}. Synchronize the first, or use another name."
        )
    own = part() if part is not None and asked.sum is not None else None
    negotiator = negotiator_of(process_set.group)
    named = _named[key] = Named(
        negotiator.submit(asked, lambda group: begin(process_set.on(group)), own, sync)
    )
    return named


_kinds: dict[str, Callable[[Request, Group], Pending]] = {}


def may_take_part(kinds: Sequence[str], begin: Callable[[Request, Group], Pending]) -> None:
    """A face of a framework: ``begin`` starts operations of these kinds on ranks that have joined."""
    _kinds.update(dict.fromkeys(kinds, begin))


def take_part(request: Request, group: Group) -> Pending:
    """Starts what other ranks have called, without data of this rank."""
    return _kinds[request.kind](request, group)


_numbers = itertools.count()
_pending: dict[int, Started] = {}
# by operation, process set and name
_named: weakref.WeakValueDictionary[tuple[str, int | None, str], Named] = weakref.WeakValueDictionary()


def give(pending: Started) -> int:
    """The handle of an operation that has been started."""
    handle = next(_numbers)
    _pending[handle] = pending
    if isinstance(pending, Named):
        pending.has_handle = True
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
        result = pending.wait()
    except SlipstreamError:
        if pending.done():
            _pending.pop(handle, None)
        raise
    _pending.pop(handle, None)  # not where a signal's handler has raised: the result is still to be had
    return result


def forget_all() -> None:
    """Called by shutdown: handles that nobody synchronised lead nowhere now."""
    _pending.clear()
    _named.clear()
