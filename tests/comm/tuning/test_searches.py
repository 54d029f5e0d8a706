"""Whole searches of a `SizeClass`, on networks that are formulas with noise, by a clock that only they move."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.comm.tuning import samples
from slipstream.comm.tuning.candidates import FEW_LANES, Candidate, Traffic
from slipstream.comm.tuning.size_class import SizeClass
from slipstream.plan.choose import choose, estimate
from slipstream.plan.topology import Topology

CALLS = 50 * 8  # 50 steps of 8 operations
SEARCHES = 100
SIZE = 1 << 20
NOISE = 0.2
OPENING = 0.15e-3  # seconds that a new connection costs the operations beside it, which
SLOW = 3.0  # take up to so many times as long meanwhile
LOOK = 0.05e-3  # seconds that it takes to tell each other times beside an operation

Network = Callable[[Candidate], float]


def milliseconds(lanes: dict[int, float], candidate: Candidate) -> float:
    """``lanes``: the time with each number; more by the way and by chunks of other sizes than 256 KiB."""
    base = lanes[candidate.lanes or FEW_LANES]
    way = {"ring": 1.0, "recursive_doubling": 1.15}.get(candidate.way.algorithm, 1.3)
    chunk = 1 + 0.03 * abs((candidate.way.chunk_bytes >> 18).bit_length() - 1)
    return 1e-3 * base * way * chunk


def one_lane_best(candidate: Candidate) -> float:
    return milliseconds({1: 0.39, 2: 0.47, 4: 0.5, 8: 0.54, 16: 0.58, 32: 0.65, 64: 0.8}, candidate)


def all_lanes_alike(candidate: Candidate) -> float:
    return milliseconds(dict.fromkeys((1, 2, 4, 8, 16, 32, 64), 4.0), candidate)


def many_lanes_best(candidate: Candidate) -> float:
    return milliseconds({1: 8.0, 2: 4.0, 4: 2.4, 8: 2.0, 16: 1.6, 32: 1.6, 64: 1.7}, candidate)


def defaults_best(candidate: Candidate) -> float:
    return milliseconds({1: 1.3, 2: 1.0, 4: 1.1, 8: 1.2, 16: 1.3, 32: 1.5, 64: 2.0}, candidate)


def one_path_left(candidate: Candidate) -> float:
    return milliseconds({1: 6.0, 2: 6.0, 4: 6.6, 8: 7.2, 16: 7.8, 32: 9.0, 64: 12.0}, candidate)


NETWORKS = (one_lane_best, all_lanes_alike, many_lanes_best, defaults_best)


@dataclass
class OneRank:
    """Stands for the `GroupTuning` and the `JobTuning` of a job of one rank, and for what it agrees on."""

    topology: Topology = field(default_factory=lambda: Topology((0, 1)))
    bits: bool = True
    looks: int = 0
    now: int = FEW_LANES
    opening: float = 0.0  # seconds that connections still cost
    tried: list[Candidate] = field(default_factory=list)

    @property
    def job(self) -> OneRank:
        return self

    @property
    def agreements(self) -> OneRank:
        return self

    def post(self, values: Sequence[float], what: str) -> SimpleNamespace:
        self.looks += 1
        return SimpleNamespace(wait=lambda: list(values))

    def compile(self, candidate: Candidate, reason: str) -> Candidate:
        return candidate

    def claim_lanes(self, owner: SizeClass) -> bool:
        return True

    def takes_turn(self, owner: SizeClass) -> bool:
        return True

    def end_turn(self, owner: SizeClass) -> None:
        pass

    def lanes(self) -> int:
        return FEW_LANES

    def set_lanes(self, lanes: int) -> None:
        wanted = lanes or FEW_LANES
        self.opening, self.now = OPENING * max(wanted - self.now, 0), wanted

    def write(self, event: str, traffic: Traffic, candidate: Candidate, *_: Any) -> None:
        self.tried.append(candidate)

    def chosen(self, *_: Any) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=1.0)
    monkeypatch.setattr(samples, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def noise(rng: random.Random) -> float:
    """What other programs add to an operation: ``NOISE`` in the mean, often less, at times much more."""
    return 1 + rng.expovariate(1 / NOISE)


@dataclass
class Job:
    """One size class of a job, and the clock that its calls move."""

    clock: SimpleNamespace
    seed: int
    tuning: OneRank = field(default_factory=OneRank)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        choice = choose("all_reduce", SIZE, self.tuning.topology)
        self.made = SizeClass(self.tuning, Traffic(SIZE.bit_length()), choice)  # type: ignore[arg-type]

    def call(self, network: Network) -> None:
        tuning, made = self.tuning, self.made
        looks, called = tuning.looks, self.clock.now
        made.begin()
        seconds = network(made.candidate)
        opening = min(tuning.opening, (SLOW - 1) * seconds)
        tuning.opening -= opening
        self.clock.now += (seconds + opening + LOOK * (tuning.looks - looks)) * noise(self.rng)
        made.ran(called, None)

    def settle(self, network: Network, most: int) -> int:
        """Calls until the class is silent; ``most`` if it is not by then."""
        for call in range(most):
            self.call(network)
            if self.made.settled:
                return call
        return most


def search(network: Network, clock: SimpleNamespace, seed: int) -> tuple[Candidate, float, int]:
    """The choice; the seconds of all calls, beside those with the defaults; and how many calls the search took."""
    job = Job(clock, seed)
    start, begun = job.made.candidate, clock.now
    settled = job.settle(network, CALLS)
    for _ in range(CALLS - settled - 1):
        job.call(network)
    usual = sum(network(start) * noise(job.rng) for _ in range(CALLS))
    return job.made.candidate, (clock.now - begun) / usual, settled


def best(network: Network) -> float:
    topology = OneRank().topology
    names = estimate("all_reduce", SIZE, topology)
    start = choose("all_reduce", SIZE, topology)
    return min(
        network(Candidate(SimpleNamespace(algorithm=name, chunk_bytes=start.chunk_bytes), lanes))  # type: ignore[arg-type]
        for name in names
        for lanes in (0, 1, 2, 4, 8, 16, 32, 64)
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_quick_operations_are_chosen_well_among_noise(network: Network, clock: SimpleNamespace) -> None:
    found = [search(network, clock, seed) for seed in range(SEARCHES)]
    good = sum(network(choice) <= best(network) / 0.95 for choice, _, _ in found)
    assert good >= 0.95 * SEARCHES
    assert max(calls for _, _, calls in found) < CALLS


@pytest.mark.parametrize("network", NETWORKS)
def test_while_it_tunes_a_job_is_little_slower(network: Network, clock: SimpleNamespace) -> None:
    shares = [search(network, clock, seed)[1] for seed in range(SEARCHES)]
    assert sum(shares) / SEARCHES <= 1.03


def searches(job: Job, network: Network, calls: int) -> int:
    """How many begin in so many calls."""
    found = 0
    for _ in range(calls):
        before = job.made.settled
        job.call(network)
        found += before and not job.made.settled
    return found


LOOKS = 4 * 256  # calls in which a change is seen three times


@pytest.mark.parametrize(
    ("first", "then"), [(defaults_best, many_lanes_best), (many_lanes_best, one_path_left)]
)
def test_a_network_that_has_changed_for_long_is_searched_again(
    first: Network, then: Network, clock: SimpleNamespace
) -> None:
    good = 0
    for seed in range(20):
        job = Job(clock, seed)
        assert job.settle(first, CALLS) < CALLS
        assert searches(job, then, LOOKS) == 1
        assert job.settle(then, CALLS) < CALLS
        good += then(job.made.candidate) <= best(then) / 0.95
        assert searches(job, then, 4 * LOOKS) == 0
    assert good >= 18


def test_a_network_that_is_slow_for_a_while_is_not_searched_again(clock: SimpleNamespace) -> None:
    job = Job(clock, 1)
    job.settle(defaults_best, CALLS)
    for _ in range(4):
        assert searches(job, many_lanes_best, 2 * 256) == 0
        assert searches(job, defaults_best, 256) == 0


def test_a_network_that_goes_to_and_fro_is_searched_five_times_more(clock: SimpleNamespace) -> None:
    job, worse = Job(clock, 1), 1.0
    job.settle(defaults_best, CALLS)
    found = 0
    for _ in range(8):
        worse *= 3

        def slower(candidate: Candidate, times: float = worse) -> float:
            return times * defaults_best(candidate)

        found += searches(job, slower, 40 * LOOKS)
    assert found == 5
