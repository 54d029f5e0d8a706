"""Handles: the integers that Horovod's asynchronous operations return, and the works behind them.

Operations start when all ranks have called them (`slipstream.comm.negotiation`). Those without a name are matched by
their order, on each process set.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from slipstream.base.errors import Aborted, SlipstreamError
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.membership.group import Group
from slipstream.comm.negotiation.agreement import Request
from slipstream.comm.negotiation.negotiated import Negotiated, Part, Pending, PlainPart
from slipstream.comm.negotiation.negotiator import negotiator_of
from slipstream.faces.horovod.memory import InFlight, Memory
from slipstream.faces.horovod.process_sets import ProcessSet
from slipstream.faces.horovod.words import SHUT_DOWN, add_words, in_horovods_words
from slipstream.gradients.joining import JoinsBeside

__all__ = [
    "Grouped",
    "Named",
    "PendingResult",
    "beside_join",
    "forget_all",
    "give",
    "joins_beside",
    "may_take_part",
    "poll",
    "run",
    "settle",
    "start",
    "started_after",
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

    def __init__(self, parts: Sequence[PendingResult], collect: Callable[[list[Any]], Any] = list) -> None:
        self.parts = parts
        self.collect = collect

    def done(self) -> bool:
        """Whether all parts are done."""
        return all(part.done() for part in self.parts)

    def wait(self) -> Any:
        """Waits for all parts, in order; returns what ``collect`` makes of their results."""
        return self.collect([part.wait() for part in self.parts])


class Named:
    """An operation that starts when all ranks have called it.

    If it has a name, nothing else of its kind can have that before it is done. If it has a handle, then not before that
    is synchronised, or `poll` said that it is done.
    """

    __slots__ = ("__weakref__", "_negotiated", "has_handle")

    def __init__(self, negotiated: Negotiated) -> None:
        self._negotiated = negotiated
        self.has_handle = False

    def taken(self, asked: Request, process_set: ProcessSet) -> ValueError:
        """For another one, which has its name."""
        return negotiator_of(process_set.group).name_taken(asked, self._negotiated)

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
        except SlipstreamError as error:
            add_words(error)
            raise
        finally:
            if self.done():  # it is not where a signal handler has raised an exception
                _in_flight.drop(self)


class _Turns(threading.local):
    before: Callable[[ProcessSet, Request], None] | None = None


_turns = _Turns()


@contextlib.contextmanager
def started_after(turn: Callable[[ProcessSet, Request], None]) -> Iterator[None]:
    """Within it an operation of this thread starts once ``turn`` has returned, and not if it raises.

    Its arguments have been checked before: then this rank is not going to leave it out.
    """
    outer, _turns.before = _turns.before, turn
    try:
        yield
    finally:
        _turns.before = outer


def start(
    name: str | None,
    process_set: ProcessSet,
    request: Callable[[str], Request],
    begin: Callable[[ProcessSet], Pending],
    part: Callable[[], Part] | None = None,
    sync: bool = False,
    memory: Memory | None = None,
) -> Named:
    """Has an operation started by ``begin`` when all ranks have called it. "" is no name, as in Horovod.

    ``request`` makes of the name what the ranks compare. ``begin`` gets the process set to use: ``process_set`` itself
    in the calling thread if all ranks ask for that (`Request.own`). ``part``: of a buffer, if the request has a sum.
    ``sync``: the caller waits for it at once. ``memory``: an operation without a name waits for those before it that
    meet it there. ValueError while another operation of the kind has the name.
    """
    asked = request(name or "")
    key = None
    if name:
        key = _free(asked, process_set)
    elif memory is not None:
        settle(memory, process_set.group, asked.kind)
    own = part() if part is not None and asked.sum is not None else None
    if _turns.before is not None:
        _turns.before(process_set, asked)

    def started(group: Group | None) -> Pending:
        return begin(process_set if group is None else process_set.on(group))

    named = Named(negotiator_of(process_set.group).submit(asked, started, own, sync))
    if key is not None:
        _named[key] = named
    elif memory is not None and not named.done():
        _in_flight.add(named, memory)
    return named


def run(
    name: str | None,
    process_set: ProcessSet,
    group: Group,
    asked: Request,
    begin: Callable[[ProcessSet], Pending],
    part: PlainPart,
) -> Any:
    """`start` and `Named.wait` of a sum, which ``asked`` is: quicker, and for memory that no other operation has.

    ``group``: the set's.
    """
    if name:
        _free(asked, process_set)

    def started(used: Group | None) -> Pending:
        return begin(process_set if used is None else process_set.on(used))

    try:
        return negotiator_of(group).run_now(asked, part, started)
    except SlipstreamError as error:
        add_words(error)
        raise


def _free(asked: Request, process_set: ProcessSet) -> tuple[str, int | None, str]:
    """What its name is known by. ValueError if that is taken, or no text."""
    if not asked.name.isascii():
        asked.name.encode()
    key = (asked.kind, process_set.process_set_id, asked.name)
    before = _named.get(key)
    if before is not None and before.has_handle:
        raise before.taken(asked, process_set)
    return key


def settle(memory: Memory, group: Group, kind: str) -> None:
    """Waits for all operations without a name that meet this memory: so they act in the order of their calls."""
    for other in _in_flight.meeting(memory):
        with Together(group, kind, waits=True), contextlib.suppress(SlipstreamError):
            other.wait()  # its error is for who waits for its handle


_in_flight: InFlight[Named] = InFlight()  # without a name


_kinds: dict[tuple[str, str], Callable[[Request, Group], Pending]] = {}


def may_take_part(kinds: Sequence[str], begin: Callable[[Request, Group], Pending], of: str = "") -> None:
    """A face of a framework: ``begin`` starts operations of these kinds on ranks that have joined.

    ``of``: the word, and a space, that the forms of its requests begin with; a program may use two faces at a time.
    """
    _kinds.update(dict.fromkeys(((kind, of) for kind in kinds), begin))


def take_part(request: Request, group: Group) -> Pending:
    """Starts what other ranks have called, without data of this rank."""
    of, space, _ = request.form.partition(" ")
    return _kinds[request.kind, of if space else ""](request, group)


_beside: list[JoinsBeside] = []


def joins_beside(begin: JoinsBeside) -> None:
    """A face of a framework whose operations do not all go by the negotiation: ``begin`` is entered around `join`."""
    _beside.append(begin)


def beside_join() -> tuple[JoinsBeside, ...]:
    """What is to be entered around `join`."""
    return tuple(_beside)


_numbers = itertools.count()
_pending: dict[int, Named] = {}
_left: set[int] = set()  # handles of jobs before
# by operation, process set and name
_named: weakref.WeakValueDictionary[tuple[str, int | None, str], Named] = weakref.WeakValueDictionary()


def give(pending: Named) -> int:
    """The handle of an operation that has been started."""
    handle = next(_numbers)
    _pending[handle] = pending
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
    Returns None for a handle that is not in use. Raises SlipstreamError when the operation failed, or `shutdown` has
    been called since it was started. When a signal handler raises an exception here, the operation goes on, and may be
    synchronised again.

    >>> hvd.synchronize(hvd.allreduce_async(torch.ones(2), op=hvd.Sum))
    tensor([2., 2.])
    """
    pending = _pending.get(handle)
    if pending is None:
        if handle in _left:
            text = "the job was left before this operation was synchronised: its result is lost."
            raise Aborted(in_horovods_words(text, SHUT_DOWN))
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
    """Called by shutdown: handles that nobody synchronised lead to an error now."""
    _left.update(_pending)
    _pending.clear()
    _named.clear()
    _in_flight.clear()
