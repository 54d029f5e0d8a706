"""Deadlines of the launcher's loop, on a clock of the tests."""

from __future__ import annotations

from slipstream.launch.deadlines import Deadline, Deadlines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_loop_waits_for_the_next_deadline_alone() -> None:
    clock = Clock()
    deadlines = Deadlines(clock)
    first, second = deadlines.add(lambda: None), deadlines.add(lambda: None)
    assert deadlines.wait() is None
    first.set(5)
    second.set(2)
    assert deadlines.wait() == 2
    second.clear()
    assert deadlines.wait() == 5
    clock.now += 7
    assert deadlines.wait() == 0


def test_an_action_is_called_once_and_in_the_order_of_addition() -> None:
    clock = Clock()
    deadlines = Deadlines(clock)
    called: list[str] = []
    late, early = deadlines.add(lambda: called.append("late")), deadlines.add(lambda: called.append("early"))
    late.set(2)
    early.set(1)
    deadlines.expire()
    assert called == []
    clock.now += 2
    deadlines.expire()
    deadlines.expire()
    assert called == ["late", "early"]
    assert late.when is None


def test_an_action_may_set_its_deadline_again_and_clear_another() -> None:
    clock = Clock()
    deadlines = Deadlines(clock)
    called: list[float] = []

    def again() -> None:
        called.append(clock.now)
        one.set(3)
        other.clear()

    one: Deadline = deadlines.add(again)
    other = deadlines.add(lambda: called.append(-1))
    one.set(1)
    other.set(1)
    for _ in range(5):
        clock.now += 1
        deadlines.expire()
    assert called == [101, 104]
