"""Results that are copied to where the caller wants them, once their operation is done.

The engine has works on the same memory act one after another, but it does not know of such copies. So they are kept
here until they are made, and a call on memory that one of them is to write first waits for its operation. All ranks
call the operations of a group, and of a peer and tag, in one order, so that this ends. Where the two are not of one
group, peer and tag, the ranks may have called them in different orders: that ends the session, as in the engine.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slipstream import _core
from slipstream.base.dtypes import DType
from slipstream.base.errors import SlipstreamError
from slipstream.comm.collectives.interruption import Together, is_foreign
from slipstream.comm.membership.group import Group
from slipstream.plan.steps import Kind, Space

__all__ = ["OPEN", "CopyBack", "any_source", "await_memory", "refusal", "settle", "settle_tables"]

Overlaps = Callable[[int, int, Any], bool]


class CopyBack:
    """A copy to come; calling it makes it, unless it has been made. ``work``: what it follows.

    ``overlaps(begin, end, memory)``: whether it writes to these addresses. ``memory`` is what the caller has there, if
    that does not use them all (a strided tensor), else None.
    """

    __slots__ = ("_channel", "_copy", "_error", "_group", "_lock", "_name", "_work", "copies", "overlaps")

    def __init__(
        self, work: Any, group: Group, channel: int, name: str, overlaps: Overlaps, copy: Callable[[], None]
    ) -> None:
        self._work = work
        self._group, self._channel, self._name = group, channel, name
        self.overlaps = overlaps
        self._copy: Callable[[], None] | None = copy
        self._error: Exception | None = None  # of a copy that cannot be made
        self._lock = threading.RLock()
        self.copies = False  # a thread, now; a signal's handler may call operations meanwhile
        _sweep()
        _core.note_copies(1)  # before it is there, and taken back after it has gone: never too low
        OPEN[self] = None

    def __call__(self) -> None:
        self._make()
        if self._error is not None:
            raise self._error

    def _make(self) -> None:
        with self._lock:
            if self.copies:
                raise RuntimeError(
                    f"a signal's handler cannot use the memory of {self._name} while its thread copies the result there"
                )
            try:
                self.copies = True
                if self._copy is not None:
                    self._copy()
                    self._copy = None  # not before: an exception of a signal handler may have come between
            except Exception as error:
                if is_foreign(error):
                    raise
                self._copy, self._error = None, error.with_traceback(None)
            finally:
                self.copies = False
        self._forget()

    def _forget(self) -> None:
        if OPEN.pop(self, False) is None:
            _core.note_copies(-1)

    def copy(self) -> None:
        """Waits for the operation, and makes the copy unless it failed. Errors of both are for who waits for it."""
        try:
            self._work.wait()
        except SlipstreamError:
            self._forget()
        else:
            self._make()

    def done(self) -> bool:
        """Whether the operation is."""
        done: bool = self._work.done()
        return done

    def come_before(self, group: Group, channel: int, name: str) -> None:
        """Is over when this returns; ends the session if the call ``name`` may not wait for it."""
        if not self.done():
            if group is not self._group or channel != self._channel:
                group.session.abort(refusal(group, name, self._name))
                return
            with Together(group, name, waits=True):
                self.copy()
        else:
            self.copy()


OPEN: dict[CopyBack, None] = {}
"""Those that have not been made, in the order of their calls."""


def settle(group: Group, channel: int, name: str, *memory: tuple[int, int, Any]) -> None:
    """What the call ``name`` does before it uses ``memory``: (address, bytes, see `CopyBack`)."""
    _sweep()
    for copy_back in list(OPEN):
        if any(copy_back.overlaps(begin, begin + nbytes, what) for begin, nbytes, what in memory if nbytes):
            copy_back.come_before(group, channel, name)


def _sweep() -> None:
    """Makes the oldest copies, if their time has come: nobody may wait for their handles."""
    for copy_back in list(OPEN):
        if not copy_back.done():
            break
        if not copy_back.copies:
            copy_back.copy()


def settle_tables(
    group: Group,
    operation: str,
    size: int,
    src: int,
    dst: int,
    count: int,
    copies: Sequence[tuple[int, int, int] | None],
    fields: Mapping[str, Any],
) -> None:
    """`settle` for what `addresses` asks of the engine: ``count`` elements of ``size`` bytes, or as the tables say."""
    inputs, outputs = (fields.get(table) for table in ("in_offsets", "out_offsets"))
    used = [
        (src, (inputs[-1] if inputs else count) * size),
        (dst, (outputs[-1] if outputs else count) * size),
    ]
    for copy in copies:
        if copy is not None:
            used.append((copy[0], copy[2]))
    name = operation.partition("/")[0]
    settle(group, fields.get("channel", 0), name, *((*each, None) for each in used))


def refusal(group: Group, name: str, earlier: str) -> str:
    """Why a session ends where calls on the same memory have no order."""
    return (
        f"rank {group.native.ranks[group.rank]} called {name} on memory that {earlier} of another group, or with "
        f"another rank or tag, still works on, and one of them writes it: wait for the first before the second is "
        f"called"
    )


def any_source(group: Group, tag: int) -> int:
    """Stands for the channel of a receive from any source, which has none when it is called."""
    return group.channel(group.rank, group.rank, tag)


def await_memory(
    group: Group,
    name: str,
    address: int,
    nbytes: int,
    *,
    writes: bool,
    channel: int = 0,
    memory: Any = None,
    timeout: float = 0.0,
) -> None:
    """Before the call ``name`` itself copies from this memory (``writes``: and copies to it when it is done).

    Waits until no earlier operation of the group (with ``channel``: of the peer and tag) needs it, copies to come
    included. If one of another group, peer or tag does, that ends the session: raises Aborted. ``memory``: see
    `CopyBack`.
    """
    if not nbytes:
        return
    if OPEN:
        settle(group, channel, name, (address, nbytes, memory))
    if group.session.quiet():
        return
    with Together(group, name, waits=True):
        request = _core.Request(
            group=group.native,
            plan=_copying(),
            operation=name,
            dtype=DType.U8,
            chunk_bytes=0,
            channel=channel,
        )
        group.session.await_memory(request, address, nbytes, writes, timeout)


@functools.cache
def _copying() -> _core.Plan:
    """What a copy does with its input and output."""
    rows = np.array([Kind.COPY, -1, 0, 1, Space.IN, Space.OUT, 0], dtype=np.int32)
    return _core.Plan.compile(0, 1, 1, rows, np.empty(0, dtype=np.int32))


def _forget_after_fork() -> None:
    _core.leak(dict(OPEN))
    _core.note_copies(-len(OPEN))
    OPEN.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
