"""The order in which gradients come: what ranks agree on, and when one wishes for another; without ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.base.dtypes import DType
from slipstream.gradients import buckets, order
from slipstream.gradients.buckets import Parameter, cut
from slipstream.gradients.order import Cut, Places, Watch, exposed, in_order, missing, places_of

SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=16)


def parameters(counts: list[int]) -> list[Parameter]:
    return [Parameter(index, count, DType.F32, f"p{index}") for index, count in enumerate(counts)]


@st.composite
def arrivals(draw: Any, count: int) -> list[int]:
    """What a rank sees of ``count`` gradients: some or all of them, in any order."""
    shuffled = draw(st.permutations(range(count)))
    return list(shuffled[: draw(st.integers(0, count))])


@st.composite
def jobs(draw: Any) -> tuple[list[int], list[list[int]]]:
    """Sizes of the gradients, and what each of some ranks sees."""
    counts = draw(SIZES)
    return counts, draw(st.lists(arrivals(len(counts)), min_size=1, max_size=5))


def agreed(seen: list[list[int]], count: int) -> Places:
    return np.max([places_of(one, count) for one in seen], axis=0)


def indices(parts: Cut) -> list[list[int]]:
    return [[parameter.index for parameter in part] for part in parts]


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_ranks_agree_on_an_order_that_none_has_to_wait_for(job: tuple[list[int], list[list[int]]]) -> None:
    counts, seen = job
    places = agreed(seen, len(counts))
    found = [parameter.index for parameter in in_order(parameters(counts), places)]
    assert sorted(found) == list(range(len(counts)))
    assert found == [p.index for p in in_order(parameters(counts), agreed(seen[::-1], len(counts)))]
    heard = [one for one in seen if one]  # a rank without any gradient says nothing
    absent = {index for one in heard for index in range(len(counts)) if index not in one}
    assert missing(places) == absent
    assert all(index in absent for index in found[len(counts) - len(absent) :])
    at = {index: number for number, index in enumerate(found)}
    for first in set(range(len(counts))) - absent:
        for second in set(range(len(counts))) - absent - {first}:
            if heard and all(one.index(first) < one.index(second) for one in heard):
                assert at[first] < at[second]


@settings(max_examples=100, deadline=None)
@given(jobs(), st.booleans())
def test_the_last_bucket_that_comes_is_small_after_each_agreement(
    job: tuple[list[int], list[list[int]]], grouped: bool
) -> None:
    counts, seen = job
    places = agreed(seen, len(counts))
    given = in_order(parameters(counts), places)
    absent = missing(places)
    groups = [[0, len(counts) - 1]] if grouped and len(counts) > 1 else []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BUCKET_BYTES", 4096), ("FIRST_BUCKET_BYTES", 512), ("LAST_BUCKET_BYTES", 1024)):
            patch.setattr(buckets, name, value)
        parts = cut(given, groups, missing=absent)
    assert sorted(index for part in indices(parts) for index in part) == list(range(len(counts)))
    coming = [part for part in parts if not {one.index for one in part} & absent]
    assert all(len({one.index in absent for one in part}) == 1 for part in parts if indices([part]) != groups)
    if coming and coming[-1][-1].index not in {index for group in groups for index in group}:
        assert len(coming[-1]) == 1 or sum(one.nbytes for one in coming[-1]) <= 1024
    ends = [given.index(part[-1]) for part in parts]
    assert ends == sorted(ends)


def test_what_is_left_of_an_exchange_when_backward_is_over() -> None:
    four = parameters([16] * 4)
    single = [[one] for one in four]
    assert exposed([four], places_of([0, 1, 2, 3], 4)) == pytest.approx(1)
    assert exposed(single, places_of([0, 1, 2, 3], 4)) == pytest.approx(1 / 4)
    assert exposed(single, places_of([3, 2, 1, 0], 4)) == pytest.approx(1)
    assert exposed(single, places_of([1, 2, 3], 4)) == pytest.approx(1)
    assert exposed(single[1:] + single[:1], places_of([1, 2, 3], 4)) == pytest.approx(1 / 2)
    assert exposed(single, places_of([], 4)) == pytest.approx(1)


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_no_more_is_left_than_all(job: tuple[list[int], list[list[int]]]) -> None:
    counts, seen = job
    places = agreed(seen, len(counts))
    assert 0 <= exposed(cut(in_order(parameters(counts), places)), places) <= 1 + 1e-9


class Rank:
    """A rank alone: what it wishes for, it gets."""

    def __init__(self, count: int) -> None:
        self.parameters = parameters([16] * count)
        self.watch = Watch(count)
        self.parts: Cut = self.cut(places_of(range(count), count))
        self.agreements: list[int] = []
        self.steps = 0

    def cut(self, places: Places) -> Cut:
        return [[one] for one in in_order(self.parameters, places)]

    def step(self, arrived: list[int]) -> None:
        self.steps += 1
        if self.watch.wishes(arrived, lambda: self.parts, self.cut):
            self.parts = self.cut(self.watch.places)
            self.watch.agreed()
            self.agreements.append(self.steps)


def test_another_order_is_wished_for_when_it_has_come_some_times_on_end() -> None:
    up, down = list(range(10)), list(range(9, -1, -1))
    rank = Rank(10)
    for arrived in [up, down] * 20 + [down] * (order.STEPS_TO_SHOW - 2) + [up]:
        rank.step(arrived)
    assert rank.agreements == []
    begin = rank.steps
    for _ in range(3 * order.STEPS_TO_SHOW):
        rank.step(down)
    assert rank.agreements == [begin + order.STEPS_TO_SHOW]
    assert indices(rank.parts) == [[index] for index in down]


def test_little_changes_and_orders_that_no_buckets_fit_are_left_alone() -> None:
    random = np.random.default_rng(3)
    rank = Rank(20)
    for _ in range(200):
        swapped = list(range(20))
        place = int(random.integers(19))
        swapped[place : place + 2] = swapped[place + 1], swapped[place]
        rank.step(swapped)
    for _ in range(1000):
        rank.step(random.permutation(20).tolist())
        rank.step([])
    assert rank.agreements == []


def test_agreements_become_rare_where_they_do_not_last() -> None:
    up, down = list(range(10)), list(range(9, -1, -1))
    rank, keep = Rank(10), order.STEPS_TO_KEEP
    rank.step(up)
    for block in range(1000):
        for _ in range(order.STEPS_TO_SHOW + 2):
            rank.step(up if block % 2 else down)
    pauses = np.diff(rank.agreements)
    assert pauses[0] > keep
    assert all(later > 1.8 * earlier for earlier, later in pairwise(pauses[1:]))
    assert 5 <= len(rank.agreements) <= 8
    for _ in range(12 * int(pauses[-1])):  # it lasts: the next change is seen soon again
        rank.step(up)
    since = rank.steps
    for _ in range(order.STEPS_TO_SHOW):
        rank.step(down)
    assert rank.agreements[-1] == since + order.STEPS_TO_SHOW
    rank.step(down)
    for _ in range(2 * keep):
        rank.step(up)
    assert rank.agreements[-1] == since + order.STEPS_TO_SHOW + keep + 1
