"""Results that are copied to where the caller wants them, while a signal's handler calls operations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from slipstream.comm.collectives.copies_back import OPEN, CopyBack, settle
from slipstream.comm.collectives.work import DONE
from slipstream.comm.membership.group import Group

GROUP = cast(Group, None)


def known(overlaps: Callable[[int, int, object], bool], copy: Callable[[], None]) -> CopyBack:
    """A copy back of an operation that is done."""
    copy_back = CopyBack(GROUP, 0, "all_reduce", overlaps, copy)
    copy_back.follow(DONE)
    return copy_back


def use(begin: int, end: int) -> str:
    """What a handler's call on this memory raises that comes amid a copy to 100..200; the copy is made all the same."""
    said: list[str] = []
    made: list[bool] = []

    def copy() -> None:
        made.append(True)
        try:
            settle(GROUP, 0, "broadcast", (begin, end - begin, None))
        except RuntimeError as error:
            said.append(str(error))

    copy_back = known(lambda low, high, _: low < 200 and high > 100, copy)
    thread = threading.Thread(target=copy_back.copy, daemon=True)
    try:
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        assert copy_back not in OPEN
    finally:
        OPEN.pop(copy_back, None)
    assert made == [True]
    return "".join(said)


def test_a_handler_may_use_other_memory_amid_a_copy() -> None:
    assert use(200, 300) == ""


def test_a_handler_that_uses_the_same_memory_amid_a_copy_gets_an_error() -> None:
    assert "a signal's handler cannot use the memory of all_reduce" in use(150, 300)


def test_a_copy_that_cannot_be_made_is_an_error_for_who_waits_for_it_alone() -> None:
    def copy() -> None:
        raise RuntimeError("no such memory")

    copy_back = known(lambda low, high, _: True, copy)
    settle(GROUP, 0, "broadcast", (0, 8, None))
    assert copy_back not in OPEN
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such memory"):
            copy_back()


def test_a_copy_that_a_handler_breaks_off_is_made_later() -> None:
    made: list[int] = []

    def copy() -> None:
        made.append(1)
        if len(made) == 1:
            raise KeyboardInterrupt

    copy_back = known(lambda low, high, _: True, copy)
    with pytest.raises(KeyboardInterrupt):
        copy_back()
    copy_back()
    assert len(made) == 2
    assert copy_back not in OPEN
