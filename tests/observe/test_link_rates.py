"""How fast links are, as steps have seen it."""

from __future__ import annotations

from typing import Any

from slipstream.observe.link_rates import LinkRates

MIB = 1 << 20


def noted(*rates: float) -> dict[str, Any]:
    """What is known of a link to rank 1 that had these rates, and of another one that has hardly been used."""
    now, sent = 0.0, 0
    found = LinkRates(lambda: now)
    assert not found.is_due()
    for number, rate in enumerate(rates):
        now += 0.25
        assert found.is_due()
        sent += 2 * MIB
        found.note([{"rank": 1, "sent": sent, "rate": rate}, {"rank": 2, "sent": number, "rate": 1e3}])
        assert not found.is_due()
    assert found.of(2) == {"best_rate": 0.0, "rate_notes": 0}
    return found.of(1)


def test_what_is_slow_now_and_then_is_as_fast_as_it_can_be() -> None:
    assert noted(60e6, 10e6, 61e6, 62e6, 9e6, 80e6) == {"best_rate": 62e6, "rate_notes": 6}
    assert noted(60e6) == {"best_rate": 0.0, "rate_notes": 1}


def test_a_rate_that_stays_is_one_note() -> None:
    """The link has been busy for too short a time since."""
    assert noted(9e6, 60e6, 9e6, 9e6, 9e6, 9e6) == {"best_rate": 9e6, "rate_notes": 3}


def test_what_was_long_ago_does_not_count() -> None:
    assert noted(*(60e6 + i for i in range(9)), *(5e6 + i for i in range(16))) == {
        "best_rate": 5e6 + 14,
        "rate_notes": 16,
    }
