"""What the network between hosts is taken for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.comm.measuring.network import Measured, _ping, classified
from slipstream.plan.order import prove
from slipstream.plan.steps import Kind
from slipstream.plan.topology import Network, members_of_hosts

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


@given(places=st.lists(st.integers(0, 5), min_size=2, max_size=12))
def test_one_rank_of_each_host_asks_or_answers(places: list[int]) -> None:
    leaders = [members[0] for members in members_of_hosts(len(places), places)]
    if len(leaders) < 2:
        return
    plans = [_ping(rank, len(places), leaders) for rank in range(len(places))]
    prove(plans, in_place=False)
    asking = {plan.rank for plan in plans if plan.steps[0].kind == Kind.SEND}
    talking = {plan.rank for plan in plans if any(step.peer >= 0 for step in plan.steps)}
    assert talking == set(leaders)
    assert len(asking) == -(-len(leaders) // 2)


def test_ten_gigabit_ethernet_is_what_is_taken_for_granted() -> None:
    assert classified(Measured(9.4e9 / 8, 40e-6)) == Network()
