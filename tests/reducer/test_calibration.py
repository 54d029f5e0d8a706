"""What a job's reducers are worth: rates and times from measured ones, and reducers that only some ranks reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm import ranks
from reducer import cluster
from reducer.cluster import needs_lab
from reducer.test_job import environment, reducers
from slipstream.lab import Lab
from slipstream.plan.choose import SmallCosts
from slipstream.plan.sizing import measured_rates

RANK = Path(__file__).with_name("small_rank.py")

workers = st.integers(2, 64)
seconds = st.floats(1e-4, 10)


def ring_seconds(n: int, one: float) -> float:
    """Over the ring, when all the bytes take ``one`` second over a worker's link."""
    return one * 2 * (n - 1) / n


def part_seconds(n: int, one: float, rates: list[float]) -> list[float]:
    """Of parts of equal size, each n workers' data over a link of its rate."""
    return [one * n / len(rates) / rate for rate in rates]


# ---- rates


@given(workers, seconds, st.data())
def test_links_alike_have_a_workers_rate(n: int, one: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    assert measured_rates(n, ring_seconds(n, one), part_seconds(n, one, [1.0] * k)) == (1.0,) * k


@pytest.mark.parametrize(("n", "k"), [(4, 3), (8, 6), (16, 12)])
def test_three_quarters_of_the_workers_rate(n: int, k: int) -> None:
    """They do not count as all of it: the ring has a part."""
    assert measured_rates(n, ring_seconds(n, 1), part_seconds(n, 1, [1.0] * k)) == (1.0,) * k


@given(workers, seconds, st.data())
def test_what_is_about_a_workers_rate_counts_as_that(n: int, one: float, data: st.DataObject) -> None:
    rates = data.draw(st.lists(st.floats(0.76, 1.32), min_size=1, max_size=n))
    found = measured_rates(n, ring_seconds(n, one), part_seconds(n, one, rates))
    if sum(rates) < 0.75 * n:
        assert found == (1.0,) * len(rates)
    else:  # together nearly as fast as all workers: what is missing counts as noise
        assert all(
            rate is not None and rate >= min(1.0, measured)
            for rate, measured in zip(found, rates, strict=True)
        )


@pytest.mark.parametrize("slow", [0.02, 0.2, 0.7])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_slow_link_keeps_its_rate(slow: float, place: int) -> None:
    rates = [1.0, 1.0, 1.0]
    rates[place] = slow
    found = measured_rates(8, ring_seconds(8, 0.1), part_seconds(8, 0.1, rates))
    assert found[place] == pytest.approx(slow)
    assert [rate for i, rate in enumerate(found) if i != place] == [1.0, 1.0]


def test_one_that_seems_faster_than_most_is_like_them() -> None:
    parts = part_seconds(8, 0.1, [1.0] * 8)
    parts[3] /= 1.6
    assert measured_rates(8, ring_seconds(8, 0.1), parts) == (1.0,) * 8


def test_a_fast_link_keeps_its_rate() -> None:
    assert measured_rates(8, ring_seconds(8, 1), [4.0, 1.0]) == (1.0, pytest.approx(4))


@given(workers, seconds, st.lists(st.none() | seconds, max_size=32))
def test_one_that_is_not_there_has_no_rate_and_changes_no_others(
    n: int, ring: float, parts: list[float | None]
) -> None:
    found = measured_rates(n, ring, parts)
    assert [rate is None for rate in found] == [part is None for part in parts]
    present = [part for part in parts if part is not None]
    assert [rate for rate in found if rate is not None] == list(measured_rates(n, ring, present))


@given(workers, seconds, st.lists(seconds, min_size=1, max_size=32))
def test_who_took_longer_is_not_faster(n: int, ring: float, parts: list[float]) -> None:
    found = measured_rates(n, ring, parts)
    ordered = [rate for _, rate in sorted(zip(parts, found, strict=True), key=lambda pair: pair[0])]
    assert all(rate is not None and rate > 0 for rate in ordered)
    assert ordered == sorted(ordered, key=lambda rate: rate or 0, reverse=True)


@pytest.mark.parametrize(
    ("ring", "parts"), [(0.0, [1.0]), (-1.0, [1.0]), (1.0, [1.0, 0.0]), (1.0, [None, -1.0])]
)
def test_times_that_cannot_be_are_refused(ring: float, parts: list[float | None]) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        measured_rates(4, ring, parts)


# ---- small ones


def test_the_cheaper_way_is_taken() -> None:
    # The lines cross in the middle.
    costs = SmallCosts(workers=(10e-6, 30e-6), reducer=(20e-6, 20e-6))
    middle = (64 + (16 << 10)) // 2
    assert not any(costs.reducer_pays(nbytes) for nbytes in (0, 1, 64, 4096, middle - 1))
    assert all(costs.reducer_pays(nbytes) for nbytes in (middle + 1, 16 << 10, 32 << 10))
    turned = SmallCosts(costs.reducer, costs.workers)
    assert turned.reducer_pays(middle - 1)
    assert not turned.reducer_pays(middle + 1)


@given(seconds, seconds, st.integers(0, 32 << 10))
def test_without_a_gain_the_workers_do_it(low: float, high: float, nbytes: int) -> None:
    assert not SmallCosts((low, high), (low, high)).reducer_pays(nbytes)


# ---- reducers that only some reach


def test_a_job_starts_without_a_reducer_that_a_rank_cannot_use(tmp_path: Path) -> None:
    other = ["env", "SLIPSTREAM_REDUCER_SECRET=" + bytes(32).hex()]
    with reducers(tmp_path, 1) as services:
        texts = ranks.run(
            RANK, 3, transport="tcp", args=["unreached", "0"], env=environment(services), prefix={1: other}
        )
    assert not any("Error" in text or "is used again" in text for text in texts)


@needs_lab
@pytest.mark.slow
def test_a_job_starts_with_those_reducers_that_all_ranks_reach(tmp_path: Path) -> None:
    with Lab(3, reducers=2) as lab, cluster.reducers(lab, tmp_path):
        lab.run("h3", ["ip", "route", "add", "blackhole", lab.address("r1") + "/32"])
        command = [str(RANK), "unreached", "01"]
        with cluster.job(lab, tmp_path / "job", lab.hosts[:3], command) as job:
            assert job.process.wait(60) == 0, job.output()
