"""What happens in this process, for those who write it down: the timeline.

Layers below `observe` record here, and so does the user's program. While nobody listens, that costs one look at a
tuple. Times are nanoseconds of `time.monotonic_ns`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

__all__ = [
    "Listener",
    "Recorded",
    "listen",
    "mark",
    "record",
    "recording",
    "span",
    "stop_listening",
    "timeline_mark",
    "timeline_span",
]


class Recorded(NamedTuple):
    """A bar on ``track`` from ``begin`` to ``end``, or a mark if there is no ``end``.

    ``details``: numbers and short texts. ``nests``: bars of this track lie within each other or apart, as those of a
    thread do; else they may overlap in any way.
    """

    track: str
    name: str
    begin: int
    end: int | None
    details: dict[str, Any]
    nests: bool


Listener = Callable[[Recorded], None]  # any thread calls it; it has to be quick, and must not raise

_listeners: tuple[Listener, ...] = ()
_lock = threading.Lock()


def listen(listener: Listener) -> None:
    """Calls ``listener`` with all that is recorded from now on."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)


def stop_listening(listener: Listener) -> None:
    """Ends what `listen` began."""
    global _listeners
    with _lock:
        _listeners = tuple(one for one in _listeners if one != listener)


def recording() -> bool:
    """Whether anybody listens: for those who would have to prepare what they record."""
    return bool(_listeners)


def record(track: str, name: str, begin: int, end: int | None, /, **details: Any) -> None:
    """Records a bar whose times are known, or a mark at ``begin`` if ``end`` is None."""
    _tell(Recorded(track, name, begin, end, details, False))


def mark(track: str, name: str, /, **details: Any) -> None:
    """Records that something happened now."""
    if _listeners:
        _tell(Recorded(track, name, time.monotonic_ns(), None, details, False))


def _tell(event: Recorded) -> None:
    for listener in _listeners:
        listener(event)


class span:
    """Records what runs within ``with`` as a bar of ``track``.

    >>> from slipstream.base.recording import span
    >>> with span("negotiation", "round", names=3):
    ...     pass
    """

    __slots__ = ("_begin", "_details", "_name", "_nests", "_track")

    def __init__(self, track: str, name: str, /, **details: Any) -> None:
        self._track, self._name, self._details = track, name, details
        self._begin, self._nests = 0, False

    def __enter__(self) -> None:
        self._begin = time.monotonic_ns() if _listeners else 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._begin and _listeners:
            if kind is not None:
                self._details["error"] = kind.__name__
            end = time.monotonic_ns()
            _tell(Recorded(self._track, self._name, self._begin, end, self._details, self._nests))


class timeline_span(span):
    """Shows what runs within ``with`` as a bar of the timeline, in the row of this thread.

    ``name``: what the bar is called. ``details``: numbers and short texts that the timeline shows with it. It costs
    less than a microsecond while no timeline is recorded. It needs no job. Raises TypeError for details without a
    name.

    >>> with slipstream.timeline_span("load data", batch=7):
    ...     pass
    """

    __slots__ = ()

    def __init__(self, name: str, /, **details: Any) -> None:
        super().__init__(_thread_track(), name, **details)
        self._nests = True


def timeline_mark(name: str, /, **details: Any) -> None:
    """Shows a mark in the timeline, in the row of this thread: something that happened now.

    ``name``: what the mark is called. ``details``: numbers and short texts that the timeline shows with it. It needs no
    job. Raises TypeError for details without a name.

    >>> slipstream.timeline_mark("epoch", number=3)
    """
    if _listeners:
        _tell(Recorded(_thread_track(), name, time.monotonic_ns(), None, details, True))


def _thread_track() -> str:
    return f"thread {threading.current_thread().name}"


def _forget_after_fork() -> None:
    global _listeners, _lock
    _listeners, _lock = (), threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)  # a child is no rank
