"""Sizing of reducers: closed forms, published figures, and properties for all clusters."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slipstream.base.settings import parse_reducers
from slipstream.plan.sizing import (
    MOST_REDUCERS,
    Cluster,
    Training,
    cheapest,
    outcome,
    relative_time,
    rule,
    size,
    split,
    usable,
)

MEGABIT, GIGABIT = 10**6, 10**9
workers = st.integers(2, 200)
rates = st.lists(st.floats(0.01, 8), max_size=MOST_REDUCERS)
prices = st.integers(0, 10**4).map(lambda cents: cents / 100)
clusters = st.builds(
    Cluster,
    workers,
    st.integers(MEGABIT, 400 * GIGABIT),
    st.integers(MEGABIT, 400 * GIGABIT),
    worker_price=prices,
    reducer_price=prices,
)
trainings = st.builds(
    Training, st.integers(1, 1 << 34), st.floats(0, 10), st.sampled_from([0.0, 0.3, 0.7, 1.0])
)


@given(workers)
def test_without_reducers_it_is_the_ring(n: int) -> None:
    assert relative_time(n, 0) == pytest.approx(2 * (n - 1) / n)
    assert split(n, []) == (1.0,)


@given(workers, st.floats(0, 100))
def test_from_as_many_as_workers_on_data_travels_once(n: int, more: float) -> None:
    assert relative_time(n, n) == relative_time(n, n + more) == 1
    assert split(n, [1.0] * n)[0] == 0
    assert relative_time(n, n - 1e-9) == pytest.approx(1)  # no step where the formula changes


@pytest.mark.parametrize(("n", "gain"), [(2, 1), (4, 1.5), (8, 1.75), (1 << 20, 2)])
def test_published_gains_over_the_ring(n: int, gain: float) -> None:
    """Reduction Server: up to twice the algorithm bandwidth, about 75 % more with 8 nodes."""
    assert relative_time(n, 0) / relative_time(n, n) == pytest.approx(gain, rel=1e-5)


@given(workers, st.data())
def test_equal_rates_give_the_published_split(n: int, data: st.DataObject) -> None:
    """BytePS, with k <= n machines more: each takes 2(n-1)/(n^2+kn-2k), each GPU machine (n-k)/(n^2+kn-2k)."""
    k = data.draw(st.integers(0, min(n, MOST_REDUCERS)))
    whole = n * n + k * n - 2 * k
    assert relative_time(n, k) == pytest.approx(float(Fraction(2 * n * (n - 1), whole)))
    ring, *reducers = split(n, [1.0] * k)
    assert ring == pytest.approx(float(Fraction(n * (n - k), whole)))
    assert reducers == pytest.approx([float(Fraction(2 * (n - 1), whole))] * k)


@given(workers, rates)
def test_a_split_is_whole_and_all_its_parts_end_at_once(n: int, given_rates: list[float]) -> None:
    total = math.fsum(given_rates)
    ring, *reducers = split(n, given_rates)
    time = relative_time(n, total)
    assert min([ring, *reducers]) >= 0
    assert math.fsum([ring, *reducers]) == pytest.approx(1)
    # Each worker's link carries its part of the ring and what goes to the reducers.
    assert ring * 2 * (n - 1) / n + math.fsum(reducers) == pytest.approx(time)
    # Each reducer's link carries its part of every worker; links that are too many rest.
    times = [n * part / rate for part, rate in zip(reducers, given_rates, strict=True)]
    assert times == pytest.approx([time if total <= n else n / total] * len(times))


def test_a_reducer_that_is_not_there_gets_nothing() -> None:
    assert split(4, [1.0, 0.0, 1.0])[2] == 0
    assert split(4, [0.0, 0.0]) == (1.0, 0.0, 0.0)
    assert split(2, [2.0, 0.0]) == (0.0, 1.0, 0.0)


@given(clusters, trainings)
def test_more_reducers_are_never_slower(cluster: Cluster, training: Training) -> None:
    steps = [outcome(cluster, training, k) for k in range(MOST_REDUCERS + 1)]
    for fewer, more in itertools.pairwise(steps):
        assert more.communication_seconds <= fewer.communication_seconds * (1 + 1e-12)
        assert more.step_seconds <= fewer.step_seconds * (1 + 1e-12)
        assert more.speedup >= fewer.speedup * (1 - 1e-12)
    enough = usable(cluster)
    assert steps[enough].communication_seconds == pytest.approx(steps[-1].communication_seconds)


@given(clusters)
def test_the_rule_is_the_fewest_with_all_the_workers_bandwidth(cluster: Cluster) -> None:
    together = cluster.workers * cluster.worker_rate
    assert rule(cluster) * cluster.reducer_rate >= together > (rule(cluster) - 1) * cluster.reducer_rate


def exact_cost(cluster: Cluster, training: Training, reducers: int) -> Fraction:
    """Of a step, by the formula of `slipstream plan reducers --help`, in fractions."""
    n, sum_of_rates = cluster.workers, Fraction(reducers * cluster.reducer_rate, cluster.worker_rate)
    time = Fraction(8 * training.nbytes, cluster.worker_rate)
    if sum_of_rates < n:
        time *= 2 * n * (n - 1) / (n * n + n * sum_of_rates - 2 * sum_of_rates)
    overlap = Fraction(training.overlap)
    step = max(Fraction(training.compute), overlap * time) + (1 - overlap) * time
    price = n * Fraction(cluster.worker_price) + reducers * Fraction(cluster.reducer_price)
    return price * step / 3600


@given(clusters, trainings)
def test_no_number_costs_less_than_the_cheapest(cluster: Cluster, training: Training) -> None:
    found = cheapest(cluster, training)
    assume(cluster.priced)
    assert found is not None
    costs = [exact_cost(cluster, training, k) for k in range(MOST_REDUCERS + 1)]
    assert float(costs[found]) == pytest.approx(float(min(costs)))
    for k in (0, found, MOST_REDUCERS):
        assert outcome(cluster, training, k).cost_per_step == pytest.approx(float(costs[k]))


@pytest.mark.parametrize(("overlap", "seconds"), [(0, 0.3 + 1), (0.25, 0.3 + 0.75), (0.5, 1), (1, 1)])
def test_overlap_hides_communication_behind_compute(overlap: float, seconds: float) -> None:
    cluster = Cluster(8, 8 * MEGABIT, 8 * MEGABIT)  # M/B is one second
    found = outcome(cluster, Training(MEGABIT, 0.3, overlap), 8)
    assert found.communication_seconds == pytest.approx(1)
    assert found.step_seconds == pytest.approx(seconds)


def test_the_cost_of_a_training() -> None:
    cluster = Cluster(8, 8 * MEGABIT, 4 * MEGABIT, 30, 0.5)
    found = size(cluster, Training(MEGABIT, 2.0, steps=1200))
    assert (found.rule, found.recommended) == (16, 16)
    assert [one.reducers for one in found.outcomes] == [0, 1, 2, 4, 8, 16]
    alone, most = found.outcomes[0], found.outcomes[-1]
    assert (alone.step_seconds, most.step_seconds) == (3.75, 3)
    assert (alone.hours, most.hours) == (1.25, 1)
    assert (alone.total_cost, most.total_cost) == (300, 248)
    assert most.cost_per_1000_steps == pytest.approx(248 / 1.2)
    assert most.relative_cost == pytest.approx(248 / 300)
    assert most.speedup == pytest.approx(1.25)


def test_two_workers_need_none() -> None:
    found = size(Cluster(2, GIGABIT, GIGABIT, 30, 0.5), Training(1 << 30, 1), 5)
    assert (found.recommended, found.cheapest) == (0, 0)
    assert [one.speedup for one in found.outcomes] == [1, 1]
    assert found.outcomes[1].reducers == 5


def test_a_job_has_no_more_reducers_than_settings_take() -> None:
    names = [f"r{i}" for i in range(MOST_REDUCERS + 1)]
    assert len(parse_reducers(",".join(names[:-1]))) == MOST_REDUCERS
    with pytest.raises(ValueError, match=str(MOST_REDUCERS)):
        parse_reducers(",".join(names))
    found = size(Cluster(64, 100 * GIGABIT, 32 * GIGABIT), Training(1 << 30, 1))
    assert (found.rule, found.recommended, found.cheapest) == (200, MOST_REDUCERS, None)
    assert found.outcomes[-1].cost_per_step is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster(1, 1, 1), "at least 2 workers"),
        (lambda: Cluster(2, 0, 1), "rate"),
        (lambda: Cluster(2, 1, 1, -1), "price"),
        (lambda: Cluster(2, 1, 1, math.nan), "price"),
        (lambda: Cluster(2, 1, 1, 1, math.inf), "price"),
        (lambda: Training(0, 1), "one byte"),
        (lambda: Training(1, math.nan), "time to compute"),
        (lambda: Training(1, 1, 1.1), "overlap"),
        (lambda: Training(1, 1, 0, 0), "steps"),
        (lambda: outcome(Cluster(2, 1, 1), Training(1, 1), MOST_REDUCERS + 1), "0 to 32 reducers"),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()
