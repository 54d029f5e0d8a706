"""What a rank needs to interrupt its own calls, and to see that nothing has been harmed by it.

Rank 0 makes a call that rank 1 does not make yet, and a signal handler raises an exception in it. Rank 1 learns of
that by a file, makes its call, and checks what it got.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slipstream
from slipstream import _core

PATTERN = 0x5A
_PATIENCE = 30.0


class Alarm(Exception):
    """What the handler of SIGALRM raises: no class that the library could know."""


def _ring(*_: object) -> None:
    raise Alarm


def _exit(*_: object) -> None:
    sys.exit("told to end")


signal.signal(signal.SIGALRM, _ring)
signal.signal(signal.SIGTERM, _exit)
signal.signal(signal.SIGINT, signal.default_int_handler)


_RAISED: dict[int, type[BaseException]] = {
    signal.SIGALRM: Alarm,
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: SystemExit,
}


# In an operation of the session, or in one of the reducers'.
_WAITS = re.compile(r"\n  waits: |; it (also )?waits in ")


def waits(session: _core.Session) -> bool:
    """Whether an operation of this rank has begun and waits for others."""
    return _WAITS.search(session.report()) is not None


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that another thread or process does."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {_PATIENCE:g} s: {what}"
        time.sleep(0.005)  # a poll of what another thread or process does


def _starts_several() -> bool:
    """Whether the main thread has yet to start operations of its call, where an exception would end the session, or
    has left one behind (a bucket in backward) and is not in the call that waits for it.
    """
    names = _functions_of_main()
    return "start_grouped_all_reduce" in names or ("step" in names and "_complete" not in names)


def _functions_of_main() -> set[str]:
    """The names of the functions that the main thread is in."""
    names = set()
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def break_off(
    function: Callable[[], object],
    session: _core.Session,
    number: int = signal.SIGALRM,
    ready: Callable[[], bool] = lambda: True,
) -> None:
    """Calls ``function``, and has the signal's handler raise in it once the engine waits for another rank.

    ``ready``: what has to be true of the call besides. It is asked by another thread.
    """
    called = threading.Event()  # for the engine may already wait, for an earlier work

    def interrupt() -> None:
        assert called.wait(_PATIENCE), f"no call within {_PATIENCE:g} s"
        until(lambda: waits(session) and ready(), "the call is under way")
        os.kill(os.getpid(), number)

    helper = threading.Thread(target=interrupt)
    helper.start()
    try:
        called.set()
        function()
    except _RAISED[number]:
        pass
    else:
        raise AssertionError("the call was not interrupted")
    finally:
        helper.join()


def main_is_in(function: str) -> bool:
    """Whether the main thread is in a function of this name, which may have called others."""
    return function in _functions_of_main()


class Interrupted:
    """Interrupts calls of this rank, one after another."""

    def __init__(self, session: _core.Session, folder: Path, number: int) -> None:
        self.session = session
        self._folder, self._signal = folder, number
        self._count = 0

    def call(self, function: Callable[[], object]) -> None:
        """Calls ``function``, and interrupts it once the engine waits for the other rank."""
        break_off(function, self.session, self._signal, lambda: not _starts_several())
        gc.collect()
        self._file().touch()
        self._count += 1

    def wait_for_other(self) -> None:
        """The other rank's side: returns when its call has been interrupted."""
        until(self._file().exists, "the other rank was interrupted")
        self._count += 1

    def _file(self) -> Path:
        return self._folder / f"interrupted-{self._count}"

    def until_over(self) -> None:
        """Waits until the engine needs no memory of interrupted calls any more."""
        until(lambda: _core.orphans() == 0, "the interrupted call is over")


def bystanders(nbytes: int) -> list[NDArray[np.uint8]]:
    """Arrays that lie where freed ones of this size lay."""
    return [np.full(nbytes, PATTERN, dtype=np.uint8) for _ in range(8)]


def check_untouched(arrays: list[NDArray[np.uint8]], what: str) -> None:
    for array in arrays:
        assert (array == PATTERN).all(), (
            f"{what}: wrote into memory that was freed and given to somebody else"
        )


def check_equal(found: Any, expected: Any, what: str) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    right = found.shape == expected.shape and (found == expected).all()
    assert right, f"{what}: {found.ravel()[:4]} != {expected}"


def check_aborted(call: Callable[[], object], name: str, complete: Any = None) -> None:
    """The session has ended because rank 0 was interrupted in the call of this name.

    ``complete``: the call may also return this: rank 0 has sent its part, and the end of the session comes after it.
    """
    try:
        found = call()
    except slipstream.Aborted as error:
        text = str(error)
    else:
        assert complete is not None, "the session goes on"
        check_equal(found, complete, name)
        return
    assert f"rank 0 was interrupted inside {name} (" in text, text
