"""How long tickets are kept, on a clock of the test's own."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from slipstream.faces.tensorflow import tickets


class Clock:
    """What tickets take for `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(tickets, "time", found)
    monkeypatch.setattr(tickets, "_tickets", {})
    return found


def test_an_operation_that_took_long_has_its_results(clock: Clock) -> None:
    """They are asked for a moment after its end, and others may begin before that."""
    ticket = tickets.Ticket()
    clock.now += 2 * tickets._LONGEST
    ticket.end([np.ones(1)])
    tickets.Ticket()
    assert tickets.take(ticket.number) is ticket


def test_results_that_nobody_asks_for_are_given_up(clock: Clock) -> None:
    ticket = tickets.Ticket()
    ticket.end()
    clock.now += 2 * tickets._LONGEST
    tickets.Ticket()
    with pytest.raises(KeyError):
        tickets.take(ticket.number)
