"""Calls back when operations are done, for futures.

Callbacks run on threads of their own, and may block there until other operations are done: as soon as the last
idle thread takes a callback, another is started. So there is always one that listens.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from slipstream import _core

__all__ = ["when_done"]

_KEPT_IDLE = 2  # threads that stay when there is nothing to do


class _Completer:
    def __init__(self) -> None:
        self._queue = _core.Completions()
        self._tokens = itertools.count(1)
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: list[threading.Thread] = []  # also those that are about to end

    def call(self, work: _core.Work | None, callback: Callable[[], None]) -> None:
        token = next(self._tokens)
        self._callbacks[token] = callback
        with self._lock:
            if self._idle == 0:
                self._hire()
        if work is None:
            self._queue.post(token)
        else:
            self._queue.add(work, token)

    def _hire(self) -> None:
        thread = threading.Thread(target=self._serve, name="slipstream futures", daemon=True)
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        self._idle += 1
        thread.start()

    def _serve(self) -> None:
        while True:
            token = self._queue.wait()
            if token is None or token < 0:
                break
            with self._lock:
                self._idle -= 1
                if self._idle == 0:
                    self._hire()
            try:
                self._callbacks.pop(token)()
            except Exception:
                logging.getLogger("slipstream").exception("a callback of a future failed")
            with self._lock:
                if self._idle >= _KEPT_IDLE:
                    return
                self._idle += 1

    def close(self) -> None:
        """Ends the threads: the interpreter's end would find them with tensors, and PyTorch would end the process."""
        self._queue.close()
        for thread in self._threads:
            thread.join(timeout=1.0)


_completer: _Completer | None = None
_make = threading.Lock()


def when_done(running: Any, callback: Callable[[], None]) -> None:
    """Calls ``callback`` once, on a thread of this module, when ``running`` is done (however it ended)."""
    staged = getattr(running, "add_done_callback", None)
    if staged is not None:
        staged(lambda *_: _get().call(None, callback))
    elif running.done():
        callback()
    else:
        _get().call(running.native, callback)


def _get() -> _Completer:
    global _completer
    with _make:
        if _completer is None:
            _completer = _Completer()
        return _completer


@atexit.register
def _close() -> None:
    if _completer is not None:
        _completer.close()


def _forget_after_fork() -> None:
    global _completer, _make
    if _completer is not None:
        _core.leak(_completer)
    _completer, _make = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
