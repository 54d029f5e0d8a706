"""When a timeline is written."""

from __future__ import annotations

import threading

import pytest

from slipstream.observe import pace
from slipstream.observe.pace import FIRST, Pace

FOR_EVER = 1e6  # seconds


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "FIRST", 1e-6)


@pytest.mark.usefixtures("prompt")
def test_what_comes_ends_the_quiet() -> None:
    writer = Pace(FOR_EVER)
    writer.listen()
    waiting = threading.Thread(target=writer.wait, args=(False,))
    waiting.start()
    writer.came()
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.usefixtures("prompt")
def test_what_comes_while_the_writer_writes_is_not_forgotten() -> None:
    writer = Pace(FOR_EVER)
    writer.listen()
    writer.came()
    writer.came()
    writer.wait(wrote=False)
    writer.listen()
    writer.came()
    writer.wait(wrote=True)
    writer.listen()  # forgets what has been written
    writer.came()
    writer.wait(wrote=False)
    assert writer.pause == pytest.approx(8e-6)


def test_writes_become_seldom_while_much_comes() -> None:
    writer = Pace(0.05)
    writer.end()  # nothing is waited for
    pauses = [writer.pause]
    for _ in range(4):
        writer.listen()
        writer.wait(wrote=True)
        pauses.append(writer.pause)
    assert pauses == [FIRST, 2 * FIRST, 4 * FIRST, 0.05, 0.05]


def test_a_quiet_time_makes_the_next_write_quick_again() -> None:
    writer = Pace(0.015)
    writer.wait(wrote=True)
    assert writer.pause == 0.015
    writer.listen()
    writer.wait(wrote=False)
    assert writer.pause == FIRST


def test_a_thread_that_does_not_wait_is_told_once() -> None:
    """`came` costs little while much comes."""
    writer = Pace(FOR_EVER)
    writer.listen()
    for _ in range(5):
        writer.came()
    assert writer._news.qsize() == 1
    writer.listen()
    assert writer._news.empty()


def test_the_end_ends_every_wait() -> None:
    writer = Pace(FOR_EVER)
    writer.end()
    for wrote in (False, True):
        writer.listen()
        writer.wait(wrote)
    assert writer.ended
