"""One of two ranks, of which rank 0 is interrupted while it makes a group: at each function that this calls."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

import slipstream


class Alarm(Exception):
    """What the handler raises."""


def ring(*_: object) -> NoReturn:
    raise Alarm


def interrupted_at(place: int, call: Callable[[], Any]) -> bool:
    """Calls it, and has a signal come at the ``place``-th call in the library. Whether there was one."""
    left = place

    def look(frame: Any, event: str, _argument: object) -> None:
        nonlocal left
        if "slipstream" not in frame.f_code.co_filename or event == "return":
            return  # Python looks for signals when a function begins, and after calls: not when one returns
        left -= 1
        if left == 0:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGALRM)

    try:
        sys.setprofile(look)
        call()
    except Alarm:
        return True
    finally:
        sys.setprofile(None)
    return False


def make_and_use(make: Callable[[], slipstream.Group]) -> None:
    place = 0
    if slipstream.rank() == 0:
        while interrupted_at(place + 1, make):
            place += 1
        # The last call was not interrupted: it has made a group, as the other rank does.
        assert place > 3, place
    else:
        make()
    first, second = make(), make()
    works = [
        slipstream.all_reduce(np.array([value + slipstream.rank()]), group=group, async_op=True)
        for value, group in ((100, first), (200, second))
    ]
    assert [int(work.wait()[0]) for work in works] == [201, 401]


signal.signal(signal.SIGALRM, ring)
slipstream.init()
if sys.argv[1] == "world":
    make_and_use(slipstream.world)
else:
    make_and_use(lambda: slipstream.Group([0, 1]))
slipstream.shutdown()
