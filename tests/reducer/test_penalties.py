"""How long hosts have to wait whose jobs broke a reducer's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.reducer.penalties import FIRST, MOST, Penalties


def test_each_fault_doubles_the_wait_up_to_a_bound() -> None:
    penalties, now, waits = Penalties(), 100.0, []
    for _ in range(9):
        waits.append(penalties.fault("a", "why", now, now))
        assert penalties.left("a", now) == (waits[-1], "why")
        now += waits[-1]
        assert penalties.left("a", now)[0] == 0
    assert waits == [FIRST, 2, 4, 8, 16, 32, MOST, MOST, MOST]
    assert penalties.left("b", now) == (0.0, "")


def test_jobs_that_go_wrong_at_once_are_one_fault() -> None:
    penalties = Penalties()
    assert penalties.fault("a", "why", 0, 10) == FIRST
    assert penalties.fault("a", "why", 1, 10.1) == 0
    assert penalties.left("a", 10.1) == (pytest.approx(0.9), "why")
    assert penalties.fault("a", "why", 11, 12) == 2 * FIRST


def test_a_host_that_behaves_for_long_begins_anew() -> None:
    penalties = Penalties()
    assert penalties.fault("a", "why", 0, 0) == FIRST
    assert penalties.fault("a", "why", 100, 100) == 2 * FIRST
    assert penalties.fault("a", "why", 1000, 1000) == FIRST


@given(st.lists(st.tuples(st.integers(0, 3000), st.floats(0, 100)), max_size=3000))
def test_no_more_hosts_are_remembered_than_there_is_room_for(faults: list[tuple[int, float]]) -> None:
    penalties, now = Penalties(), 0.0
    for host, later in faults:
        now += later
        seconds = penalties.fault(str(host), "why", now, now)
        assert FIRST <= seconds <= MOST
        assert penalties.left(str(host), now)[0] == pytest.approx(
            seconds
        )  # the newest is never the one that is forgotten
        assert len(penalties._known) <= 1024
