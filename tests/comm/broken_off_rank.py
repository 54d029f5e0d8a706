"""One of two ranks. A handler of SIGALRM breaks off a call of rank 1 before the engine has its operation.

broken_off_rank.py HANDLER: prints what each call gave, or the error that ended the session
"""

from __future__ import annotations

import functools
import signal
import sys
from types import FunctionType
from typing import Any

import numpy as np

import slipstream
from slipstream.comm.collectives import arrays


class Interrupted(Exception):
    """What the handlers raise."""


def signalled(function: FunctionType) -> FunctionType:
    """The function, as if it were the library's; the signal comes when it is called."""

    def call(*args: Any) -> Any:
        if signal.getsignal(signal.SIGALRM) is not signal.SIG_IGN:
            signal.raise_signal(signal.SIGALRM)
        return function(*args)

    return FunctionType(call.__code__, {"__name__": "slipstream", "signal": signal}, closure=call.__closure__)


def plain(_number: int, _frame: object) -> None:
    raise Interrupted


def once(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    raise Interrupted


def communicates(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    slipstream.send(np.ones(1), 0, tag=9, async_op=True)
    raise Interrupted


class Guard:
    """A handler that is an object."""

    def __call__(self, number: int, frame: object) -> None:
        raise Interrupted


class Inherited(Guard):
    """One that has its method from another class."""


HANDLERS = {
    "plain": plain,
    "once": once,
    "communicates": communicates,
    "inherited": Inherited(),
    "cached": functools.lru_cache(plain),
}


def main() -> None:
    slipstream.init()
    rank = slipstream.rank()
    arrays.contiguous = signalled(arrays.contiguous)  # type: ignore[arg-type, assignment]
    for turn in range(3):
        x = np.full((2, 2), rank + 10.0 * turn)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        if rank == 1 and turn == 1:
            signal.signal(signal.SIGALRM, HANDLERS[sys.argv[1]])
        try:
            print(f"{turn}: {slipstream.all_reduce(x)[0, 0]:g}", flush=True)
        except Interrupted:
            print(f"{turn}: interrupted", flush=True)
        except slipstream.Aborted as error:
            print(f"{turn}: {error}", flush=True)
            break


main()
