"""How fast links are: the median of what steps have seen."""

from __future__ import annotations

from slipstream.observe.link_rates import LinkRates

MIB = 1 << 20


def test_the_median_counts_and_only_of_links_that_are_used() -> None:
    now = 0.0
    rates = LinkRates(lambda: now)
    assert not rates.is_due()
    sent = 0
    for number, rate in enumerate((60e6, 10e6, 61e6, 62e6, 9e6)):  # slow by chance now and then
        now += 0.25
        assert rates.is_due()
        sent += 2 * MIB
        few = number  # bytes
        rates.note([{"rank": 1, "sent": sent, "rate": rate}, {"rank": 2, "sent": few, "rate": 1e3}])
        assert not rates.is_due()
    assert rates.of(1) == {"usual_rate": 60e6, "rate_notes": 5}
    assert rates.of(2) == {"usual_rate": 0.0, "rate_notes": 0}
