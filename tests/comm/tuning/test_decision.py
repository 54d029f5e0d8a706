"""The search, on networks that are formulas: it comes near the best in few steps, and stays where nothing gains."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from slipstream.base.dtypes import WireType
from slipstream.comm.tuning.candidates import Candidate, Space, Traffic, Way, is_tuned, space_of
from slipstream.comm.tuning.decision import Found, chosen, next_to_try
from slipstream.comm.tuning.statistics import MOST_SAMPLES, next_look, seconds_of, unsettled, usable
from slipstream.comm.tuning.watching import Watch, look
from slipstream.plan.choose import choose
from slipstream.plan.topology import Topology

RING = Way("ring", 256 << 10)
OTHERS = (Way("halving_doubling", 256 << 10), Way("recursive_doubling", 256 << 10))
SPACE = Space(Candidate(RING, 0), OTHERS, 8 << 20)

Network = Callable[[Candidate], float]


def equal(candidate: Candidate) -> float:
    return 0.1 * {"ring": 1.0, "halving_doubling": 1.2, "recursive_doubling": 2.0}[candidate.way.algorithm]


def unequal(candidate: Candidate) -> float:
    return equal(candidate) * {0: 3.0, 1: 8.0, 2: 3.0, 4: 1.6, 8: 1.2}.get(candidate.lanes or 0, 1.0)


def limited_each(candidate: Candidate) -> float:
    return equal(candidate) * 64 / (candidate.lanes or 2)


def one_lane(candidate: Candidate) -> float:
    return equal(candidate) * (1 + 0.1 * ((candidate.lanes or 2) - 1))


def small_chunks(candidate: Candidate) -> float:
    return equal(candidate) * (1 + 0.1 * math.log2(candidate.way.chunk_bytes / (64 << 10)))


def other_way(candidate: Candidate) -> float:
    return equal(candidate) * (0.5 if candidate.way.algorithm == "halving_doubling" else 1.0)


NETWORKS = (equal, unequal, limited_each, one_lane, small_chunks, other_way)


def search(space: Space, network: Network, noise: float = 0.0, seed: int = 0) -> tuple[Candidate, int]:
    """The choice, and how many times something was measured."""
    rng, found, steps = random.Random(seed), Found(), 0
    while (following := next_to_try(space, found)) is not None:
        found.add(following, network(following) * (1 + noise * rng.random()))
        steps += 1
        assert steps < 40
    return chosen(space, found), steps


def best(network: Network) -> float:
    ways = [replace(way, chunk_bytes=64 << 10 << k) for way in (RING, *OTHERS) for k in range(6)]
    return min(network(Candidate(way, lanes)) for way in ways for lanes in (0, 1, 2, 4, 8, 16, 32, 64))


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("network", NETWORKS)
def test_it_comes_near_the_best_in_few_steps(network: Network, noise: float) -> None:
    for seed in range(20):
        found, steps = search(SPACE, network, noise, seed)
        assert network(found) <= best(network) / 0.95
        assert steps <= 14


@pytest.mark.parametrize("network", NETWORKS)
def test_links_may_have_more_lanes_by_then(network: Network) -> None:
    found, _ = search(replace(SPACE, start=Candidate(RING, 16)), network)
    assert network(found) <= best(network) / 0.95


def test_where_nothing_gains_what_stands_stays() -> None:
    assert search(SPACE, lambda _: 0.1)[0] == SPACE.start
    assert search(SPACE, lambda one: 0.098 if one != SPACE.start else 0.1)[0] == SPACE.start


def test_a_choice_by_luck_does_not_last() -> None:
    lucky, calls = Candidate(RING, 4), 0

    def network(one: Candidate) -> float:
        nonlocal calls
        calls += one == lucky
        return 0.05 if one == lucky and calls == 1 else 0.1

    assert search(SPACE, network)[0] == SPACE.start
    assert calls == 2


def test_a_start_with_bad_luck_is_measured_again() -> None:
    calls = 0

    def network(one: Candidate) -> float:
        nonlocal calls
        calls += one == SPACE.start
        return 0.3 if one == SPACE.start and calls == 1 else 0.1

    assert search(SPACE, network)[0] == SPACE.start
    assert calls == 2


def test_one_lane_is_not_tried_where_more_gain() -> None:
    tried = []

    def network(one: Candidate) -> float:
        tried.append(one.lanes)
        return unequal(one)

    search(SPACE, network)
    assert 1 not in tried
    assert 16 in tried


def test_lanes_that_are_not_ours_stay() -> None:
    tried = []

    def network(one: Candidate) -> float:
        tried.append(one.lanes)
        return equal(one)

    search(replace(SPACE, start=Candidate(RING, None)), network)
    assert set(tried) == {None}


def test_a_candidate_without_a_time_is_not_chosen() -> None:
    found, _ = search(SPACE, lambda one: math.inf if one.lanes == 4 else equal(one))
    assert found == SPACE.start


def test_what_changes_bits_is_tried_only_if_asked_for() -> None:
    topology = Topology((0, 1, 2, 3))
    choice = choose("all_reduce", 1 << 23, topology)
    assert space_of(choice, Traffic(24), topology, bits=False, lanes=2).ways == ()
    ways = space_of(choice, Traffic(24), topology, bits=True, lanes=2).ways
    assert ways
    assert choice.algorithm not in {way.algorithm for way in ways}


def test_only_what_carries_a_wire_type_is_tried_for_it() -> None:
    topology = Topology((0, 1, 2, 3))
    choice = choose("all_reduce", 1 << 17, topology, wire=WireType.INT8)
    names = [
        {way.algorithm for way in space_of(choice, Traffic(18, wire), topology, bits=True, lanes=2).ways}
        for wire in (WireType.EXACT, WireType.INT8)
    ]
    assert names[0] - names[1] == {"recursive_doubling"}
    assert names[1]


@pytest.mark.parametrize(
    ("collective", "magnitude", "hosts", "tuned"),
    [
        ("all_reduce", 24, (0, 1), True),
        ("all_reduce", 16, (0, 1), False),
        ("all_reduce", 24, (0, 0), False),
        ("broadcast", 24, (0, 1), False),
    ],
)
def test_what_is_tuned(collective: str, magnitude: int, hosts: tuple[int, ...], tuned: bool) -> None:
    assert is_tuned(collective, magnitude, Topology(hosts)) is tuned


def test_repeats_and_giving_up() -> None:
    assert seconds_of([0.5], 0.1) == 0.5  # clearly worse
    assert seconds_of([0.11], 0.1) is None
    assert seconds_of([0.11, 0.10], 0.1) == 0.10
    assert seconds_of([], 0.1) is None
    assert seconds_of([], 0.1, last=True) == math.inf
    assert seconds_of([0.11, 0.10, 0.001], 0.1) is None  # a quick one


def test_quick_operations_are_repeated_more() -> None:
    assert seconds_of([0.002], 0.001) is None
    assert seconds_of([0.001, 0.009, 0.002, 0.002], 0.001) == 0.002  # clearly worse, but for one time
    assert seconds_of([0.001] * 15, None) is None
    assert seconds_of([0.0001, 0.009, 0.009, *[0.001] * 13], 0.001) == 0.001  # neither luck nor bad luck


def test_ranks_seldom_tell_times_of_quick_operations() -> None:
    assert [next_look(calls, 0.1, 2) for calls in (0, 1, 2)] == [1, 2, 3]
    quick = unsettled(0.001, lanes=True)
    assert quick > unsettled(0.001, lanes=False) > unsettled(0.1, lanes=False)
    few, enough = next_look(0, 0.001, quick), next_look(quick + 4, 0.001, quick)
    assert (few, enough) == (quick + 4, MOST_SAMPLES)
    assert next_look(enough, 0.001, quick) == enough + 1


def test_of_quick_times_the_mean_counts() -> None:
    start, other = SPACE.start, Candidate(RING, 1)
    quick, slow = ({start: scale, other: 0.9 * scale} for scale in (0.001, 0.1))
    for times, expected in ((quick, 1.05), (slow, 1.0)):
        found = Found(times, {start: 1.1 * times[start]})
        assert found.seconds(start, start) == pytest.approx(expected * times[start])


def test_what_was_measured_once_alone_is_not_chosen() -> None:
    start, once, twice = SPACE.start, Candidate(RING, 1), Candidate(RING, 4)
    found = Found({start: 0.1, once: 0.05, twice: 0.06}, {start: 0.1, twice: 0.06})
    assert chosen(SPACE, found) == twice
    assert usable([0.1, math.inf, -1.0]) == [0.1]


def test_a_network_that_becomes_slower_for_long_is_searched_again() -> None:
    watch, again = Watch(0.1), False
    for seconds, expected in (
        (0.2, False),
        (0.2, False),
        (0.1, False),
        (0.2, False),
        (0.2, False),
        (0.2, True),
    ):
        watch, again = look(watch, seconds)
        assert again is expected
    later = watch.after_search(0.2)
    assert later.period == 2 * watch.period
    assert look(later, 0.2) == (later, False)


def test_it_does_not_search_for_ever() -> None:
    watch, searches = Watch(0.1), 0
    for _ in range(1000):
        watch, again = look(watch, 1.0)
        if again:
            searches += 1
            watch = watch.after_search(0.1)
    assert 1 < searches < 10
