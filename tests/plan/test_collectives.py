"""Every algorithm computes its collective, in any order of events, and moves as many bytes as published."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan.reference import ALGORITHMS, NOT_IN_PLACE, POSTSCALE, integers, make, plans_of
from slipstream.plan.direct import QUEUED_BYTES, beginnings
from slipstream.plan.double_tree import depth
from slipstream.plan.order import prove
from slipstream.plan.registry import REDUCING, algorithms, build
from slipstream.plan.simulate import bytes_per_rank, equal_cut, simulate
from slipstream.plan.steps import Kind
from slipstream.plan.topology import members_of_hosts

ALL_REDUCES = algorithms("all_reduce")


@st.composite
def topologies(draw: st.DrawFn) -> tuple[int, ...]:
    """The hosts of 1 to 16 ranks, in any order, equally many on each or not."""
    if draw(st.booleans()):
        local = draw(st.integers(1, 16))
        hosts = [host for host in range(draw(st.integers(1, 16 // local))) for _ in range(local)]
        return tuple(draw(st.permutations(hosts)))
    return tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=16)))


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@settings(max_examples=80)
@given(data=st.data())
def test_collective(collective: str, algorithm: str, data: st.DataObject) -> None:
    hosts = data.draw(topologies(), "hosts")
    size = len(hosts)
    root = data.draw(st.integers(0, size - 1), "root")
    chunks = data.draw(st.integers(1, 5), "chunks")
    reads = data.draw(st.sampled_from(["early", "late", "mixed"]), "reads")
    in_place = data.draw(st.booleans(), "in place") and algorithm not in NOT_IN_PLACE
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, data.draw(st.sampled_from([1, 2, 9]), "largest") + 1, (size, size))
    if algorithm == "pairwise_in_place":
        sizes[:] = sizes[0, 0]
    plans = plans_of(collective, algorithm, size, root, hosts)
    case = make(collective, size, plans[0].blocks, root, sizes, rng)
    outcome = simulate(
        plans,
        case.inputs,
        in_tables=case.in_tables,
        out_tables=case.out_tables,
        in_place=in_place,
        reads=reads,
        chunks=chunks,
        seed=seed,
        finish=lambda x: x * POSTSCALE,
    )
    scale = POSTSCALE if collective in REDUCING else 1
    for rank in range(size):
        np.testing.assert_array_equal(outcome.outputs[rank], case.expected[rank] * scale)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
@pytest.mark.parametrize("size", range(1, 17))
def test_all_ranks_get_the_same_bits_in_every_run(algorithm: str, size: int) -> None:
    hosts = [min(rank % 4, 2) for rank in range(size)]  # a host has twice as many as the others
    plans = plans_of("all_reduce", algorithm, size, hosts=hosts)
    rng = np.random.default_rng(size)
    scales = 10.0 ** rng.integers(-6, 7, (size, 61))
    inputs = list((rng.standard_normal((size, 61)) * scales).astype(np.float32))
    exact = np.sum(inputs, axis=0, dtype=np.float64)
    bound = size * np.finfo(np.float32).eps * np.sum(np.abs(inputs), axis=0, dtype=np.float64)
    first = simulate(plans, inputs, reads="early").outputs[0].view(np.uint32)
    for in_place, chunks, seed in [(False, 3, 1), (True, 1, 2), (True, 5, 3)]:
        # Operands come in the order of ranks, so non-commuting last bits cannot differ.
        outcome = simulate(plans, inputs, in_place=in_place, chunks=chunks, seed=seed)
        for output in outcome.outputs:
            assert np.all(np.abs(output - exact) <= bound)
            np.testing.assert_array_equal(output.view(np.uint32), first)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_both_sides_put_the_lower_rank_left(algorithm: str, size: int) -> None:
    """With (+) = left operand alone, every result is some rank's input, and the same one everywhere."""
    plans = plans_of("all_reduce", algorithm, size)
    inputs = [np.full(24, rank) for rank in range(size)]
    outcome = simulate(plans, inputs, combine=lambda left, right: left, reads="late")
    for output in outcome.outputs:
        np.testing.assert_array_equal(output, outcome.outputs[0])


def share(numerator: int, denominator: int, nbytes: int) -> int:
    assert nbytes * numerator % denominator == 0
    return nbytes * numerator // denominator


@pytest.mark.parametrize("size", range(2, 17))
def test_bytes_sent_are_the_published_ones(size: int) -> None:
    nbytes = 2 * math.lcm(*range(1, 17))
    for collective, algorithm, expected in [
        ("all_reduce", "ring", share(2 * (size - 1), size, nbytes)),
        ("all_reduce", "bidirectional_ring", share(2 * (size - 1), size, nbytes)),
        ("all_reduce", "direct", share(2 * (size - 1), size, nbytes)),
        ("reduce_scatter", "ring", share(size - 1, size, nbytes)),
        ("reduce_scatter", "direct", share(size - 1, size, nbytes)),
        ("all_gather", "ring", share(size - 1, size, nbytes)),
        ("all_gather", "direct", share(size - 1, size, nbytes)),
        ("all_to_all", "pairwise", share(size - 1, size, nbytes)),
        ("all_to_all", "pairwise_in_place", share(size - 1, size, nbytes)),
        ("all_to_all", "rounds", share(size - 1, size, nbytes)),
    ]:
        for plan in plans_of(collective, algorithm, size):
            assert bytes_per_rank(plan, nbytes) == expected, (collective, algorithm, plan.rank)


@pytest.mark.parametrize("size", range(2, 17))
def test_in_rounds_a_rank_has_two_senders_of_large_data_at_most(size: int) -> None:
    """What may have been sent and has not come, for beginnings and the rest, if a rank receives as late as it can."""
    plans = plans_of("all_to_all", "rounds", size)
    came: list[set[int]] = [set() for _ in plans]
    for _ in range(size - 1):
        sent = [
            (plan.rank, step.peer)
            for plan in plans
            for step in plan.steps
            if step.kind == Kind.SEND and step.block % 2 and came[plan.rank] >= set(step.after)
        ]
        waiting = []
        for rank, peer in sent:
            steps = enumerate(plans[peer].steps)
            index = next(i for i, s in steps if s.kind == Kind.RECV and s.peer == rank and s.block % 2)
            if index not in came[peer]:
                waiting.append((peer, index))
        assert all(count <= 2 for count in Counter(peer for peer, _ in waiting).values())
        for peer in range(size):
            first = min((index for one, index in waiting if one == peer), default=None)
            if first is not None:
                came[peer].add(first)
    assert [len(one) for one in came] == [size - 1] * size


def test_beginnings_are_whole_blocks_of_wires() -> None:
    assert beginnings((0, 5, 5, 40_000, 40_001), 4) == (0, 5, 5, 5, 5, 16_389, 40_000, 40_001, 40_001)
    assert QUEUED_BYTES // 4 % 256 == 0


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_bytes_of_powers_of_two(size: int) -> None:
    for plan in plans_of("all_reduce", "halving_doubling", size):
        assert bytes_per_rank(plan, 1600) == share(2 * (size - 1), size, 1600)
    for plan in plans_of("all_reduce", "recursive_doubling", size):
        assert bytes_per_rank(plan, 1600) == 1600 * int(math.log2(size))


@pytest.mark.parametrize("size", [3, 5, 6, 7, 13])
def test_folded_ranks_send_their_data_once(size: int) -> None:
    power = 1 << (size.bit_length() - 1)
    for plan in plans_of("all_reduce", "halving_doubling", size):
        if plan.rank >= power:
            expected = 1600
        else:
            expected = share(2 * (power - 1), power, 1600) + (1600 if plan.rank + power < size else 0)
        assert bytes_per_rank(plan, 1600) == expected


@pytest.mark.parametrize("size", range(2, 17))
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("broadcast", a) for a in algorithms("broadcast")]
    + [("reduce", "binomial"), ("reduce", "chain"), ("reduce", "double_tree")],
)
def test_trees_carry_the_data_once_to_each_rank(collective: str, algorithm: str, size: int) -> None:
    for root in range(size):
        plans = plans_of(collective, algorithm, size, root)
        assert sum(bytes_per_rank(plan, 100) for plan in plans) == 100 * (size - 1)


@pytest.mark.parametrize("size", range(2, 34))
def test_halving_gather_moves_few_bytes_through_its_root(size: int) -> None:
    power = 1 << (size.bit_length() - 1)
    nbytes = 1 << 20
    for root in (0, size // 2):
        plans = plans_of("reduce", "halving_gather", size, root)
        came = sum(
            step.count
            for plan in plans
            for step in plan.steps
            if step.kind == Kind.SEND and step.peer == root
        )
        folded = power if size > power else 0  # one rank beyond the power of two hands the root all it has
        assert came == 2 * (power - 1) + folded
        for plan in plans:
            sends = [step for step in plan.steps if step.kind == Kind.SEND]
            assert len(sends) <= power.bit_length()
            assert bytes_per_rank(plan, nbytes) <= 1.5 * nbytes


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("size", range(2, 66))
def test_no_port_of_a_double_tree_carries_the_data_twice(collective: str, size: int) -> None:
    for root in (0, size // 2):
        plans = plans_of(collective, "double_tree", size, root)
        inwards, outwards = Counter[int](), Counter[int]()
        for plan in plans:
            for step in plan.steps:
                if step.kind == Kind.SEND:
                    outwards[plan.rank] += step.count
                    inwards[step.peer] += step.count
        # Of two halves; a root has no more to do than others.
        assert max(inwards.values()) <= 2
        assert max(outwards.values()) <= 2


@pytest.mark.parametrize("size", range(2, 66))
def test_a_double_tree_is_as_deep_as_its_cost_says(size: int) -> None:
    plans = plans_of("broadcast", "double_tree", size)
    for half in (0, 1):
        depths = {0: 0}
        while len(depths) < size:
            for plan in plans:
                for step in plan.steps:
                    if step.kind == Kind.SEND and step.block == half and plan.rank in depths:
                        depths[step.peer] = depths[plan.rank] + 1
        assert max(depths.values()) <= depth(size)


@given(hosts=topologies())
def test_a_double_tree_enters_each_host_once_for_each_half(hosts: tuple[int, ...]) -> None:
    plans = plans_of("broadcast", "double_tree", len(hosts), hosts=hosts)
    entered = Counter(
        (hosts[step.peer], step.block)
        for plan in plans
        for step in plan.steps
        if step.kind == Kind.SEND and hosts[step.peer] != hosts[plan.rank]
    )
    assert entered == {(host, half): 1 for host in set(hosts) - {hosts[0]} for half in (0, 1)}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("algorithm", ["chain", "halving_gather", "double_tree"])
def test_reductions_to_one_of_many_ranks(algorithm: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 64), "size")
    root = data.draw(st.integers(0, size - 1), "root")
    hosts = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size), "hosts")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    count = data.draw(st.integers(0, 70), "count")
    inputs = [integers(rng, count) for _ in range(size)]
    plans = plans_of("reduce", algorithm, size, root, hosts)
    prove(plans, in_place=data.draw(st.booleans(), "in place"))
    full, nothing = equal_cut(len(inputs[0]), plans[0].blocks), [0] * (plans[0].blocks + 1)
    outcome = simulate(
        plans,
        inputs,
        in_tables=[full] * size,
        out_tables=[full if rank == root else nothing for rank in range(size)],
        chunks=data.draw(st.integers(1, 4), "chunks"),
    )
    np.testing.assert_array_equal(outcome.outputs[root], np.sum(inputs, axis=0, dtype=np.int64))


@pytest.mark.parametrize(("local", "hosts"), [(2, 2), (2, 3), (4, 4), (3, 5), (8, 2), (1, 6), (5, 1)])
def test_bytes_of_hierarchical(local: int, hosts: int) -> None:
    size, nbytes = local * hosts, 2 * math.lcm(*range(1, 41))
    within = share(2 * (local - 1), local, nbytes)
    across = share(2 * (hosts - 1), hosts * local, nbytes)
    for plan in plans_of("all_reduce", "hierarchical", size, hosts=[rank % hosts for rank in range(size)]):
        assert bytes_per_rank(plan, nbytes) == within + across


@given(hosts=topologies())
def test_hierarchical_sends_of_each_host_what_one_rank_would(hosts: tuple[int, ...]) -> None:
    size, several = len(hosts), len(set(hosts))
    nbytes = math.lcm(several, 840) << 20
    plans = plans_of("all_reduce", "hierarchical", size, hosts=hosts)
    for members in members_of_hosts(size, hosts):
        sent = [
            (plans[rank].blocks, step.count, hosts[step.peer] != hosts[rank])
            for rank in members
            for step in plans[rank].steps
            if step.kind == Kind.SEND
        ]
        across = sum(count * nbytes // blocks for blocks, count, leaves in sent if leaves)
        within = sum(count * nbytes // blocks for blocks, count, leaves in sent if not leaves)
        assert across == pytest.approx(2 * (several - 1) / several * nbytes)
        assert within == pytest.approx(2 * (len(members) - 1) * nbytes)


@given(hosts=topologies())
def test_a_ring_leaves_each_host_once(hosts: tuple[int, ...]) -> None:
    size = len(hosts)
    crossings = 0
    for plan in plans_of("all_reduce", "ring", size, hosts=hosts):
        peers = {step.peer for step in plan.steps if step.kind == Kind.SEND}
        assert len(peers) == (size > 1)
        crossings += sum(hosts[plan.rank] != hosts[peer] for peer in peers)
    several = len(members_of_hosts(size, hosts))
    assert crossings == (several if several > 1 else 0)


def test_a_ring_of_a_thousand_ranks_has_two_links_a_rank() -> None:
    for rank in (0, 1, 500, 999):
        plan = build("all_reduce", "ring", rank, 1000)
        assert len({step.peer for step in plan.steps if step.peer >= 0}) == 2


def test_results_of_direct_are_one_multicast() -> None:
    for plan in plans_of("all_reduce", "direct", 8):
        finish = next(i for i, step in enumerate(plan.steps) if step.kind == Kind.FINISH)
        sends = plan.steps[finish + 1 : finish + 8]
        assert {step.kind for step in sends} == {Kind.SEND}
        assert len({step.peer for step in sends}) == 7
        assert {(step.src, step.block, step.count, step.after) for step in sends} == {
            (sends[0].src, plan.rank, 1, (finish,))
        }
