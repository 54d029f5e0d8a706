"""Plans are right in every order; and plans that are not are found out, by proof and by simulation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plan.reference import ALGORITHMS, BY_HOSTS, NOT_IN_PLACE, plans_of, roots_of
from slipstream.plan.hierarchical import within_host
from slipstream.plan.order import PlanError, prove
from slipstream.plan.shards import shards_of
from slipstream.plan.simulate import Reads, simulate
from slipstream.plan.steps import Draft, Plan, Space


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_every_order_is_right(collective: str, algorithm: str) -> None:
    for size in range(1, 17):
        for root in roots_of(collective, size):
            prove(plans_of(collective, algorithm, size, root), in_place=False)
            if algorithm not in NOT_IN_PLACE:
                prove(plans_of(collective, algorithm, size, root), in_place=True)


@pytest.mark.parametrize("algorithm", BY_HOSTS)
@given(hosts=st.lists(st.integers(0, 4), min_size=1, max_size=12))
@example([0, 0, 0, 1, 1, 2])
@example([0, 1] * 6)
def test_every_order_is_right_on_any_hosts(algorithm: str, hosts: list[int]) -> None:
    for in_place in (False, True):
        prove(plans_of("all_reduce", algorithm, len(hosts), hosts=hosts), in_place)


@given(hosts=st.lists(st.integers(0, 3), min_size=2, max_size=12))
def test_the_halves_within_a_host_sum_and_distribute_by_themselves(hosts: list[int]) -> None:
    shards = shards_of(len(hosts), hosts)
    for ranks in shards.hosts:
        if len(ranks) == 1:
            continue
        reduce, gather = zip(*(within_host(shards, rank) for rank in ranks), strict=True)
        for in_place in (False, True):
            prove(reduce, in_place)
            prove(gather, in_place)
        inputs = [np.arange(97) * (rank + 1) for rank in ranks]
        sums = simulate(reduce, inputs, in_place=True).outputs
        for got in simulate(gather, sums, in_place=True).outputs:
            np.testing.assert_array_equal(got, np.sum(inputs, axis=0))


def of_two(write: Callable[[Draft, int], None], blocks: int = 1) -> list[Plan]:
    """Return plans of two ranks, each written by ``write(draft, peer)``."""
    plans = []
    for rank in range(2):
        draft = Draft("all_reduce", "wrong", rank, 2, blocks)
        write(draft, 1 - rank)
        plans.append(draft.plan())
    return plans


def exchange_over_itself(draft: Draft, peer: int) -> None:
    draft.send(peer, 0, Space.IN)
    draft.recv_reduce(peer, 0, Space.IN, Space.OUT)


def exchange_and_wait(draft: Draft, peer: int) -> None:
    sent = draft.send(peer, 0, Space.IN)
    draft.recv_reduce(peer, 0, Space.IN, Space.OUT, after=(sent,))


def finish_too_soon(draft: Draft, peer: int) -> None:
    draft.send(peer, 0, Space.IN)
    draft.recv_reduce(peer, 0, Space.IN, Space.OUT)
    draft.finish(0, Space.OUT)


def send_too_soon(draft: Draft, peer: int) -> None:
    draft.copy(0, Space.IN, Space.TMP)
    draft.send(peer, 0, Space.TMP)
    draft.recv(peer, 0, Space.OUT)


def wait_for_each_other(draft: Draft, peer: int) -> None:
    received = draft.recv(peer, 0, Space.OUT)
    draft.send(peer, 0, Space.IN, after=(received,))


def run(plans: list[Plan], in_place: bool, reads: Reads, seed: int = 0) -> list[np.ndarray]:
    inputs = [np.arange(4) + rank for rank in range(2)]
    return simulate(plans, inputs, in_place=in_place, reads=reads, seed=seed).outputs


def run_some_orders(plans: list[Plan], in_place: bool, reads: Reads) -> None:
    for seed in range(50):
        run(plans, in_place, reads, seed)


def test_an_exchange_over_itself_is_right_only_out_of_place() -> None:
    plans = of_two(exchange_over_itself)
    prove(plans, in_place=False)
    with pytest.raises(PlanError, match="race"):
        prove(plans, in_place=True)
    with pytest.raises(PlanError, match="overwrites what a send still reads"):
        run_some_orders(plans, in_place=True, reads="late")


def test_waiting_for_the_own_send_in_an_exchange_is_a_deadlock() -> None:
    plans = of_two(exchange_and_wait)
    with pytest.raises(PlanError, match="deadlock"):
        prove(plans, in_place=True)
    with pytest.raises(PlanError, match="deadlock"):
        run(plans, in_place=True, reads="late")


def test_receives_that_wait_for_each_other_are_a_deadlock() -> None:
    plans = of_two(wait_for_each_other)
    for reads in ("early", "late"):
        with pytest.raises(PlanError, match="deadlock"):
            run(plans, in_place=False, reads=reads)
    with pytest.raises(PlanError, match="deadlock"):
        prove(plans, in_place=False)


@pytest.mark.parametrize("write", [finish_too_soon, send_too_soon])
def test_a_missing_wait_is_a_race(write: Callable[[Draft, int], None]) -> None:
    with pytest.raises(PlanError, match="race"):
        prove(of_two(write), in_place=False)
    with pytest.raises(PlanError, match="before anything is there"):
        run_some_orders(of_two(write), in_place=False, reads="mixed")


@pytest.mark.parametrize("algorithm", NOT_IN_PLACE)
def test_pairwise_is_not_for_one_memory(algorithm: str) -> None:
    with pytest.raises(PlanError, match="race"):
        prove(plans_of("all_to_all", algorithm, 3), in_place=True)


def test_every_wait_of_recursive_doubling_is_needed() -> None:
    """Taking away any one dependency must not go unnoticed, in place or out of place."""
    plans = plans_of("all_reduce", "recursive_doubling", 7)
    for index, step in enumerate(plans[0].steps):
        for gone in step.after:
            weaker = step._replace(after=tuple(i for i in step.after if i != gone))
            steps = (*plans[0].steps[:index], weaker, *plans[0].steps[index + 1 :])
            changed = Plan("all_reduce", "wrong", 0, 7, 1, steps)
            with pytest.raises(PlanError, match="race"):
                prove([changed, *plans[1:]], in_place=True)


def test_unmatched_messages_are_refused() -> None:
    def send_only(draft: Draft, peer: int) -> None:
        draft.send(peer, 0, Space.IN)

    def other_blocks(draft: Draft, peer: int) -> None:
        draft.send(peer, 0, Space.IN, count=2)
        draft.recv(peer, 0, Space.OUT)

    for plans in (of_two(send_only), of_two(other_blocks, blocks=2)):
        with pytest.raises(PlanError, match="send"):
            prove(plans, in_place=False)
        with pytest.raises(PlanError, match="send"):
            run(plans, in_place=False, reads="mixed")


def test_plans_of_other_ranks_or_sizes_are_refused() -> None:
    plans = plans_of("all_reduce", "ring", 3)
    for wrong in (plans[:2], plans[::-1], [*plans[:2], plans_of("all_reduce", "tree", 3)[2]]):
        with pytest.raises(PlanError):
            prove(wrong, in_place=False)


def test_a_wrong_size_is_refused() -> None:
    plans = plans_of("all_to_all", "pairwise", 2)
    inputs = [np.arange(4), np.arange(4)]
    with pytest.raises(PlanError, match="size"):
        simulate(plans, inputs, out_tables=[[0, 2, 4], [0, 1, 4]])


def test_an_output_that_nothing_wrote_is_refused() -> None:
    def receive_only_half(draft: Draft, peer: int) -> None:
        draft.send(peer, 0, Space.IN)
        draft.recv(peer, 0, Space.OUT)

    with pytest.raises(PlanError, match="unwritten"):
        run(of_two(receive_only_half, blocks=2), in_place=False, reads="mixed")


def test_tables_that_do_not_fit_are_refused() -> None:
    plans = plans_of("all_reduce", "ring", 2)
    for tables in ([[0, 4], [0, 4]], [[0, 2, 5], [0, 2, 5]]):
        with pytest.raises(ValueError, match="table"):
            simulate(plans, [np.arange(4)] * 2, in_tables=tables)
