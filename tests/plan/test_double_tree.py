"""Two trees: what is an inner node of one is a leaf of the other, and both are as low as can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan.reference import plans_of
from slipstream.plan.order import prove
from slipstream.plan.simulate import bytes_per_rank
from slipstream.plan.steps import Kind, Plan

SIZES = range(2, 65)


def parents(plans: list[Plan], half: int) -> dict[int, int]:
    """Who is above each rank but the root, in the tree of a half of the data, as data comes down."""
    return {
        plan.rank: step.peer
        for plan in plans
        for step in plan.steps
        if (step.kind, step.block) == (Kind.RECV, half)
    }


@pytest.mark.parametrize("size", SIZES)
def test_no_rank_is_an_inner_node_of_both_trees(size: int) -> None:
    """It holds for odd sizes, too; then rank 0 is a leaf of both."""
    plans = plans_of("all_reduce", "double_tree", size)
    first, second = (set(parents(plans, half).values()) for half in range(2))
    assert not first & second
    assert len(first) == len(second) == size // 2
    assert (first | second) == set(range(size % 2, size))


@pytest.mark.parametrize("size", SIZES)
def test_trees_are_binary_and_as_low_as_can_be(size: int) -> None:
    plans = plans_of("all_reduce", "double_tree", size)
    for half in range(2):
        above = parents(plans, half)
        assert len(above) == size - 1
        assert all(list(above.values()).count(rank) <= 2 for rank in range(size))
        for rank in range(size):
            depth = 0
            while rank in above:
                rank, depth = above[rank], depth + 1
                assert depth <= size.bit_length() - 1


@pytest.mark.parametrize("size", SIZES)
def test_sums_go_up_as_results_come_down(size: int) -> None:
    plans = plans_of("all_reduce", "double_tree", size)
    for half in range(2):
        up = {
            step.peer: plan.rank
            for plan in plans
            for step in plan.steps
            if (step.kind, step.block) == (Kind.RECV_REDUCE, half)
        }
        assert up == parents(plans, half)


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_talks_to_four_and_sends_twice_its_data_at_most(size: int) -> None:
    for nbytes in (0, 1, 7, 1600):
        plans = plans_of("all_reduce", "double_tree", size)
        sent = [bytes_per_rank(plan, nbytes) for plan in plans]
        assert max(sent) <= 2 * nbytes + 1  # one half is larger by one if there is an odd one
        assert sum(sent) == 2 * (size - 1) * nbytes
        assert all(len({step.peer for step in plan.steps if step.peer >= 0}) <= 4 for plan in plans)


@given(hosts=st.lists(st.integers(0, 4), min_size=2, max_size=16))
def test_every_order_is_right_on_any_hosts(hosts: list[int]) -> None:
    for in_place in (False, True):
        prove(plans_of("all_reduce", "double_tree", len(hosts), hosts=hosts), in_place)
