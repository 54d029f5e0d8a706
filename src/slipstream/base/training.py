"""What faces tell of a training, for its metrics: the ends of steps, futures that are waited for, bytes saved.

Nothing of a framework is known here, and nothing costs more than a call.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Hashable

__all__ = [
    "also_saved",
    "future_began",
    "future_ended",
    "future_wait",
    "leave_steps",
    "mark_step",
    "observe_steps",
    "saved_bytes",
    "step_ended",
]

_listeners: list[Callable[[], None]] = []
_seen: set[Hashable] = set()  # whose steps have ended within this one
_explicit = False
_lock = threading.Lock()
_began, _ended, _under_way = 0, 0, 0  # futures: nanoseconds of the last one's begin and end, and how many
_saved = 0
_also_saved: list[Callable[[], int]] = []


def observe_steps(listener: Callable[[], None]) -> None:
    """Calls ``listener`` at the end of every training step, until `leave_steps`."""
    _listeners.append(listener)


def leave_steps(listener: Callable[[], None]) -> None:
    """Calls it no more. Harmless when repeated."""
    with contextlib.suppress(ValueError):
        _listeners.remove(listener)


def step_ended(owner: Hashable) -> None:
    """An optimizer (``owner`` tells which) has stepped. Of several, a training step has one step of each.

    Does nothing once the program marks its steps itself.
    """
    if _explicit or not _listeners:
        return
    if owner not in _seen:
        _seen.add(owner)
        if len(_seen) > 1:
            return
    else:
        _seen.clear()
        _seen.add(owner)
    _tell()


def mark_step() -> None:
    """Says that a training step ends here: for programs whose steps slipstream does not see.

    The steps of PyTorch optimizers are seen. From the first call on they are not counted, these calls are. The metrics,
    the summary and ``slipstream top`` tell how long steps take, and what part of them is communication.

    >>> slipstream.mark_step()
    """
    global _explicit
    _explicit = True
    _tell()


def _tell() -> None:
    for listener in tuple(_listeners):
        listener()


def future_began() -> None:
    """Somebody will wait for an operation through a future, which nobody can see."""
    global _began, _under_way
    with _lock:
        _began = time.monotonic_ns()
        _under_way += 1


def future_ended() -> None:
    """That operation is done."""
    global _ended, _under_way
    with _lock:
        _ended = time.monotonic_ns()
        _under_way -= 1


def future_wait() -> float:
    """Seconds from the begin of the last future to the end of the last one, since this was asked before.

    That is for how long a program waits that begins all of them and then needs them, as DDP does.
    """
    global _began
    with _lock:
        waited = 0 if _under_way or not _began else _ended - _began
        if not _under_way:
            _began = 0
    return max(0, waited) * 1e-9


def saved_bytes(count: int = 0) -> int:
    """Bytes that shorter number formats on the wire have saved so far, of one rank; ``count`` more from now on."""
    global _saved
    _saved += count
    return _saved + sum(saved() for saved in _also_saved)


def also_saved(saved: Callable[[], int]) -> None:
    """``saved()`` tells how many bytes operations have saved that this module does not hear of."""
    _also_saved.append(saved)


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _listeners.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
