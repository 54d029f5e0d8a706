"""What the network between hosts is taken for."""

from __future__ import annotations

import pytest

from slipstream.comm.measuring.network import Measured, classified
from slipstream.plan.topology import Network

ETHERNET = Network().inter_alpha


@pytest.mark.parametrize(
    ("mbit", "latency", "taken_for", "alpha"),
    [
        (95, 60e-6, 100, ETHERNET),
        (200, 100e-6, 100, ETHERNET),
        (940, 250e-6, 1000, ETHERNET),
        (9400, 30e-6, 10_000, ETHERNET),
        (23_000, 20e-6, 10_000, ETHERNET),
        (90_000, 10e-6, 100_000, ETHERNET),
        (400_000, 10e-6, 100_000, ETHERNET),
        (0.1, 5e-3, 10, 10e-3),
        (500, 0.8e-3, 1000, 1e-3),
    ],
)
def test_classes(mbit: float, latency: float, taken_for: float, alpha: float) -> None:
    found = classified(Measured(mbit * 1e6 / 8, latency))
    assert 8e-6 / found.inter_beta == pytest.approx(taken_for)
    assert found.inter_alpha == pytest.approx(alpha)


def test_ten_gigabit_ethernet_is_what_is_taken_for_granted() -> None:
    assert classified(Measured(9.4e9 / 8, 40e-6)) == Network()
