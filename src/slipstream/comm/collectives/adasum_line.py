"""Adasums that run beside the program: those of a group one after the other, in the order of their calls."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

from slipstream.base.errors import Aborted, SlipstreamError
from slipstream.comm.collectives import addresses
from slipstream.comm.collectives.adasum import Vectors, adasum, averages_hosts
from slipstream.comm.collectives.copies_back import CopyBack
from slipstream.comm.collectives.interruption import Together
from slipstream.comm.collectives.work import Work
from slipstream.comm.membership.group import Group

__all__ = ["AdasumWork", "start_adasum"]


class AdasumWork:
    """An Adasum that has been called."""

    __slots__ = ("_called", "_ended", "_error", "_name", "_vectors")

    def __init__(self, called: Work, vectors: Vectors, name: str) -> None:
        self._called, self._name = called, name
        self._vectors = vectors
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Waits for its end; raises the SlipstreamError that it failed with.

        If a signal's handler raises an exception here, the operation goes on, and may be waited for again.
        """
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def run(self, group: Group) -> None:
        """Called once, in the line of ``group``: runs it when all ranks have called it."""
        try:
            self._called.wait()
            adasum(group, self._vectors, self._name)
        except SlipstreamError as error:
            self._error = error
        except BaseException as error:
            reason = f"rank {group.job.rank} failed inside Adasum ({type(error).__name__}: {error})"
            group.session.abort(reason)
            self._error = Aborted(reason)
        finally:
            self._ended.set()


class _Line:
    """The Adasums of one group, and the thread that runs them, while there are any."""

    def __init__(self, group: Group) -> None:
        self._group = group.beside("Adasum")
        self._lock = threading.Lock()
        self._waiting: deque[AdasumWork] = deque()
        self._running = False

    def add(self, work: AdasumWork) -> None:
        """Takes one more."""
        with self._lock:
            self._waiting.append(work)
            if self._running:
                return
            threading.Thread(target=self._run, name="slipstream-adasum", daemon=True).start()
            self._running = True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                work = self._waiting.popleft()
            work.run(self._group)


def start_adasum(group: Group, vectors: Vectors, name: str, landing: CopyBack | None = None) -> AdasumWork:
    """Starts `adasum` of the vectors, which are the operation's until it is done.

    ``name`` is what errors call it, and what the ranks compare: it says what the vectors are. All ranks of the group
    start it, in one order with the group's other operations; ranks that do not get Mismatch. ``landing``: the copy of
    the result.

    >>> start_adasum(group, vectors, "Adasum of float32 (2), (3)").wait()
    """
    line = _line_of(group)
    if averages_hosts(group):
        name += ", within hosts the average"
    with Together(group, "Adasum"):
        work = AdasumWork(addresses.barrier(group, name=name), vectors, name)
        line.add(work)
        if landing is not None:
            landing.follow(work)
    return work


_lines: weakref.WeakKeyDictionary[Group, _Line] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _line_of(group: Group) -> _Line:
    with _lock:
        found = _lines.get(group)
        if found is None:
            found = _lines[group] = _Line(group)
        return found


def _forget_after_fork() -> None:
    global _lock, _lines
    _lock = threading.Lock()
    _lines = weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_forget_after_fork)
