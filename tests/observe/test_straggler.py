"""Who the straggler is, and why, by snapshots that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from observe.snapshots import link, ring, snapshot, steps
from slipstream.observe.straggler import find_straggler


def test_equal_ranks_have_no_straggler() -> None:
    assert find_straggler([snapshot(r, links=links) for r, links in enumerate(ring({}))]) is None


def test_the_rank_whose_compute_is_slow_is_named() -> None:
    """It waits for nobody, and all the others wait for it; its links look slow, as it begins late."""
    ranks = [snapshot(r, 0.1, 0.06, links) for r, links in enumerate(ring({(2, 3): 20e6}))]
    ranks[2]["steps"] = steps(0.1, 0.01)
    found = find_straggler(ranks)
    assert found is not None
    assert (found.ranks, found.host, found.cause) == ((2,), "node2", "compute")
    assert "90 ms" in found.text
    assert "40 ms" in found.text


def test_a_little_more_compute_is_no_straggler() -> None:
    ranks = [snapshot(r, 0.1, 0.05) for r in range(4)]
    ranks[1]["steps"] = steps(0.1, 0.045)
    assert find_straggler(ranks) is None


@pytest.mark.parametrize("host", range(4))
def test_the_host_whose_links_are_slow_is_named(host: int) -> None:
    slow = {((host - 1) % 4, host): 10e6, (host, (host + 1) % 4): 12e6}
    found = find_straggler([snapshot(r, links=links) for r, links in enumerate(ring(slow))])
    assert found is not None
    assert (found.ranks, found.cause) == ((host,), "network")
    assert "96 Mbit/s" in found.text


def test_one_slow_direction_names_both_of_its_ends() -> None:
    found = find_straggler([snapshot(r, links=links) for r, links in enumerate(ring({(1, 2): 5e6}))])
    assert found is not None
    assert (found.ranks, found.cause) == ((1, 2), "network")


def test_a_slow_network_that_nobody_waits_for_is_none() -> None:
    slow = {(1, 2): 5e6}
    ranks = [snapshot(r, 0.1, 0.002, links) for r, links in enumerate(ring(slow))]
    assert find_straggler(ranks) is None


def test_links_within_a_host_and_hardly_used_ones_tell_nothing() -> None:
    def found(**slow: Any) -> Any:
        links = [[link(1, 60e6)], [link(2, 60e6)], [link(3, 60e6)], [link(0, 60e6), link(1, 1e5, **slow)]]
        return find_straggler([snapshot(r, links=mine) for r, mine in enumerate(links)])

    assert found(notes=4) is None
    assert found(transport="shm") is None
    assert found().cause == "network"


def test_a_fast_link_needs_fewer_rates_than_a_slow_one() -> None:
    """Links that wait for a slow one are seldom busy for long: what they carried in those moments they can carry."""
    slow = ring({(1, 2): 8e6, (2, 3): 9e6})
    for mine in (slow[0], slow[3]):
        for one in mine:
            one["rate_notes"] = 2
    found = find_straggler([snapshot(r, links=links) for r, links in enumerate(slow)])
    assert found is not None
    assert (found.ranks, found.cause) == ((2,), "network")


def test_without_steps_the_one_that_comes_late_is_named() -> None:
    none = steps(0.0, 0.0, count=0)
    ranks = [snapshot(r, steps=none, late={"3": 4.0, "1": 0.2}) for r in range(3)]
    found = find_straggler([*ranks, snapshot(3, steps=none, late={})])
    assert found is not None
    assert (found.ranks, found.cause) == ((3,), "late")


def test_who_waits_for_the_late_one_is_not_late_itself() -> None:
    """Small operations: rank 0 hears of rank 2 through rank 1, or sees that neither has come."""
    none = steps(0.0, 0.0, count=0)
    for late in (({"2": 3.0}, {"0": 3.0}, {}), ({"1": 2.0, "2": 3.1}, {"0": 1.0, "2": 2.6}, {"0": 0.1})):
        found = find_straggler([snapshot(r, steps=none, late=late[r]) for r in range(3)])
        assert found is not None
        assert (found.ranks, found.cause) == ((2,), "late")
    both = ({"1": 3.0}, {"0": 3.0})
    assert find_straggler([snapshot(r, steps=none, late=both[r]) for r in range(2)]) is None


def test_the_one_link_of_two_hosts_is_compared_with_the_way_back() -> None:
    found = find_straggler([snapshot(r, links=[link(1 - r, (60e6, 20e6)[r])]) for r in range(2)])
    assert found is not None
    assert found.ranks == (1, 0)
    assert "the link from rank 1 (node1) to rank 0 (node0) carries 160 Mbit/s" in found.text
    assert "the other link carries 480 Mbit/s" in found.text


def test_one_rank_is_no_straggler() -> None:
    assert find_straggler([snapshot(0)]) is None
    assert find_straggler([]) is None


def test_links_to_reducers_are_not_judged() -> None:
    rates = (60e6, 60e6, 9e6)
    links = [[link(-1 - number, rate, reducer=f"r{number}") for number in range(2)] for rate in rates]
    assert find_straggler([snapshot(r, links=mine) for r, mine in enumerate(links)]) is None
