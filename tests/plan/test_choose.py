"""Choices: the rules of thumb hold, all ranks agree, and predictions agree with the closed forms."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slipstream
from plan.reference import plans_of
from slipstream.plan.choose import SPLIT_BYTES, Network, Reducers, SmallCosts, Topology, choose, estimate
from slipstream.plan.costs import shape_of
from slipstream.plan.double_tree import depth
from slipstream.plan.predict import virtual_time
from slipstream.plan.registry import algorithms, build, collectives
from slipstream.plan.topology import by_host

KIB, MIB = 1 << 10, 1 << 20


def topology(*local_sizes: int) -> Topology:
    """Return a topology with so many ranks on each host."""
    return Topology(tuple(host for host, local in enumerate(local_sizes) for _ in range(local)))


def test_many_ranks_on_few_cores_reduce_along_a_tree() -> None:
    def chosen(size: int, nbytes: int, *, crowded: bool) -> str:
        return choose("all_reduce", nbytes, Topology((0,) * size, crowded=crowded)).algorithm

    for size in (16, 64):
        assert chosen(size, 4, crowded=True) == chosen(size, 16 * KIB * size, crowded=True) == "tree"
        assert chosen(size, 16 * KIB * size + 1, crowded=True) == "direct"
        assert chosen(size, 4, crowded=False) == "recursive_doubling"
    assert chosen(15, 4, crowded=True) == "recursive_doubling"


def test_many_ranks_gather_in_few_rounds() -> None:
    crowd = Topology((0,) * 64, crowded=True)
    assert choose("all_gather", 4 * MIB, crowd).algorithm == "bruck"
    assert choose("all_gather", 4 * MIB + 1, crowd).algorithm == "direct"
    assert choose("all_gather", 64, topology(64)).algorithm == "direct"
    hosts = topology(*[1] * 64)
    assert [choose("all_gather", nbytes, hosts).algorithm for nbytes in (64, 64 * MIB)] == ["bruck", "ring"]


@pytest.mark.parametrize("size", range(2, 17))
def test_all_reduce_on_one_host(size: int) -> None:
    for nbytes in (0, 4, 4 * KIB, 32 * KIB):
        assert choose("all_reduce", nbytes, topology(size)).algorithm == "recursive_doubling"
    for nbytes in (64 * KIB, MIB, 1 << 40):
        choice = choose("all_reduce", nbytes, topology(size))
        assert choice.algorithm == "direct"
        assert 32 * KIB <= choice.chunk_bytes <= 64 * KIB


@pytest.mark.parametrize(
    ("local_sizes", "nbytes", "algorithm"),
    [
        ((1,) * 4, 4, "recursive_doubling"),
        ((2,) * 4, 4 * KIB, "recursive_doubling"),
        ((1, 2, 3), 4, "recursive_doubling"),
        ((4,) * 4, 64 * MIB, "hierarchical"),
        ((2,) * 2, 64 * MIB, "hierarchical"),
        ((1,) * 4, 64 * MIB, "ring"),
        ((4, 4, 3), 64 * MIB, "hierarchical"),
        ((3, 2, 1), 64 * MIB, "hierarchical"),
        ((1,) * 64, MIB, "halving_doubling"),
    ],
)
def test_all_reduce_on_many_hosts(local_sizes: tuple[int, ...], nbytes: int, algorithm: str) -> None:
    choice = choose("all_reduce", nbytes, topology(*local_sizes))
    assert choice.algorithm == algorithm
    assert str(nbytes) in choice.reason
    assert choice.chunk_bytes == (128 * KIB if algorithm == "hierarchical" else 256 * KIB)


@pytest.mark.parametrize("local_sizes", [(2, 2), (3, 2, 1), (8, 1)])
def test_the_hierarchy_can_be_forced(local_sizes: tuple[int, ...]) -> None:
    there = topology(*local_sizes)
    for nbytes in (4, 64 * KIB, 64 * MIB):
        forced = choose("all_reduce", nbytes, replace(there, hierarchy="on")).algorithm
        assert forced.startswith("hierarchical")
        forbidden = choose("all_reduce", nbytes, replace(there, hierarchy="off")).algorithm
        assert not forbidden.startswith("hierarchical")
    for hosts in ((0, 0, 0), (0, 1, 2)):  # nothing to reduce first
        forced = choose("all_reduce", 64 * MIB, Topology(hosts, hierarchy="on")).algorithm
        assert not forced.startswith("hierarchical")
    assert choose("broadcast", 64, replace(there, hierarchy="on")) == choose("broadcast", 64, there)


def test_what_is_moved_on_one_host_has_larger_chunks_where_it_is_large() -> None:
    for collective in ("all_gather", "broadcast", "gather", "scatter"):
        sizes = (0, 4 * MIB, 8 * MIB, 16 * MIB, 1 << 40)
        found = [choose(collective, nbytes, topology(4)).chunk_bytes // KIB for nbytes in sizes]
        assert found == [64, 64, 128, 256, 512]
    for nbytes in (0, 1 << 20, 1 << 40):  # the ranks of an all_to_all may hold different amounts
        assert choose("all_to_all", nbytes, topology(4)).chunk_bytes == 256 * KIB
    for collective in ("all_reduce", "reduce_scatter", "reduce"):
        assert choose(collective, 64 * MIB, topology(4)).chunk_bytes == 64 * KIB


def test_chunks_are_smaller_where_many_peers_are_sent_different_bytes() -> None:
    for size, chunk in ((2, 256), (4, 256), (8, 256), (16, 128), (64, 64)):
        assert choose("all_to_all", 1 << 40, topology(size)).chunk_bytes == chunk * KIB
        assert choose("all_gather", 1 << 40, topology(size)).chunk_bytes == 512 * KIB


def test_a_chain_has_smaller_chunks_the_longer_it_is_and_the_less_it_carries() -> None:
    def chunk(hosts: int, nbytes: int) -> int:
        choice = choose("reduce", nbytes, topology(*[1] * hosts))
        assert choice.algorithm == "chain"
        return choice.chunk_bytes // KIB

    assert [chunk(4, nbytes * KIB) for nbytes in (128, 1024, 16 << 10, 1 << 20)] == [32, 128, 256, 256]
    assert [chunk(hosts, 32 * MIB) for hosts in (4, 16, 64)] == [256, 256, 128]


def test_many_hosts_share_medium_data_by_two_trees() -> None:
    """From 8 hosts on, where a tree would send the whole several times, and a chain takes long to fill."""
    for hosts, least, most in ((8, 256, 512), (16, 256, 2048)):
        there = topology(*[1] * hosts)
        for nbytes in (least * KIB, most * KIB):
            assert choose("broadcast", nbytes, there).algorithm == "double_tree"
        assert choose("broadcast", KIB, there).algorithm == "binomial"
        assert choose("broadcast", 4 * most * KIB, there).algorithm == "chain"


@pytest.mark.parametrize("hosts", [8, 16, 32, 64])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_what_a_double_tree_costs_is_near_the_virtual_clock(collective: str, hosts: int) -> None:
    """And it gains more than a tenth there, as it would not be worth a plan otherwise."""
    there, nbytes = topology(*[1] * hosts), 64 * KIB

    def played(algorithm: str, chunk: int) -> float:
        return virtual_time(plans_of(collective, algorithm, hosts), nbytes, there, chunk)

    alone = played("double_tree", 16 * KIB)
    others = min(played("binomial", 256 * KIB), played("chain", 16 * KIB))
    assert alone < 0.9 * others
    shape = shape_of(there)
    parts = (
        depth(hosts) * (shape.outer + 32 * KIB * there.network.inter_beta)
        + 32 * KIB * there.network.inter_beta
    )
    assert alone == pytest.approx(parts, rel=0.35)


def test_other_collectives() -> None:
    one, many = topology(4), topology(*[1] * 16)
    for collective in ("reduce_scatter", "all_gather"):
        assert choose(collective, MIB, one).algorithm == "direct"
        assert choose(collective, 64 * MIB, many).algorithm == "ring"
    assert choose("reduce_scatter", 16, many).algorithm == "direct"
    assert choose("all_gather", 16, many).algorithm == "bruck"
    assert choose("broadcast", 64 * MIB, one).algorithm == "direct"
    assert choose("broadcast", 64, many).algorithm == "binomial"
    assert choose("broadcast", 256 * MIB, many).algorithm == "chain"
    assert choose("reduce", 64, many).algorithm == "binomial"
    assert choose("reduce", 256 * KIB, many).algorithm == "double_tree"
    slow = Topology(many.hosts, Network(inter_beta=8e-9))
    assert choose("reduce", 16 * KIB, slow).algorithm == "halving_gather"
    assert choose("reduce", 64 * MIB, many).algorithm == "chain"
    assert choose("all_to_all", MIB, many)[:2] == ("rounds", 64 * KIB)
    for others in (topology(2, 2, 2), topology(1, 1), one):
        assert choose("all_to_all", MIB, others).algorithm == "pairwise"


@given(
    hosts=st.lists(st.integers(0, 3), min_size=1, max_size=16).map(tuple),
    nbytes=st.integers(0, 1 << 34),
    collective=st.sampled_from(collectives()),
)
def test_every_choice_can_be_built_and_is_the_same_for_equal_arguments(
    hosts: tuple[int, ...], nbytes: int, collective: str
) -> None:
    choice = choose(collective, nbytes, Topology(hosts))
    assert choose(collective, nbytes, Topology(tuple(hosts), Network())) == choice
    # What the hosts are called is of no account: ranks may number them differently.
    renamed = Topology(tuple(7 - host for host in hosts))
    assert choose(collective, nbytes, renamed) == choice
    assert choice.algorithm in algorithms(collective)
    for rank in range(len(hosts)):
        build(collective, choice.algorithm, rank, len(hosts), hosts=hosts)


def test_a_slower_network_moves_the_choice() -> None:
    """Where bytes cost nothing, fewer rounds win at any size."""
    free = Topology((0, 1, 2, 3), Network(inter_beta=0.0, intra_beta=0.0, gamma=0.0))
    assert choose("all_reduce", 1 << 30, free).algorithm == "recursive_doubling"
    costly = Topology((0, 1, 2, 3), Network(inter_beta=1.0))
    assert choose("all_reduce", 4096, costly).algorithm == "direct"
    assert choose("all_reduce", MIB, costly).algorithm == "ring"


def test_short_messages_of_all_to_all_meet_no_congestion() -> None:
    """Up to the bytes that a network can queue for each rank, all talk to all; beyond, rings load neighbours alone."""
    slow = Topology((0, 1, 2, 3), Network(inter_beta=8e-9))
    for collective in ("all_reduce", "reduce_scatter", "all_gather"):
        chosen = [
            choose(collective, nbytes, slow).algorithm for nbytes in (64 * KIB, 256 * KIB, 256 * KIB + 4)
        ]
        assert chosen == ["direct", "direct", "ring"]


def test_calls_that_follow_each_other_count_where_only_a_root_waits() -> None:
    """Alone, 64 KiB are sooner at all ranks through a tree, but it keeps the port of the root for twice as long."""
    slow = Topology((0, 1, 2, 3), Network(inter_beta=8e-9))
    assert choose("broadcast", 64 * KIB, slow).algorithm == "chain"
    assert choose("broadcast", 4 * KIB, slow).algorithm == "chain"
    assert (
        choose("broadcast", 512, slow).algorithm == "binomial"
    )  # no port is busy: it is how soon it is there


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="no collective"):
        choose("all_reduced", 4, topology(2))
    with pytest.raises(ValueError, match="bytes"):
        choose("all_reduce", -1, topology(2))
    with pytest.raises(ValueError, match="one rank"):
        Topology(())


@given(hosts=st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_by_host_keeps_hosts_together(hosts: list[int]) -> None:
    order = by_host(len(hosts), hosts)
    assert sorted(order) == list(range(len(hosts)))
    changes = sum(hosts[a] != hosts[b] for a, b in pairwise(order))
    assert changes == len(set(hosts)) - 1


PLAIN = Network(inter_alpha=50e-6, inter_beta=1e-9, inter_overhead=0.0, gamma=0.0)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_virtual_time_of_one_chunk_is_the_alpha_beta_formula(size: int) -> None:
    spread = Topology(tuple(range(size)), PLAIN)
    nbytes = 840 * KIB
    ring = virtual_time(plans_of("all_reduce", "ring", size), nbytes, spread, chunk_bytes=1 << 30)
    rounds = 2 * (size - 1)
    assert ring == pytest.approx(rounds * (PLAIN.inter_alpha + nbytes / size * PLAIN.inter_beta))
    if size & (size - 1) == 0:
        doubling = virtual_time(
            plans_of("all_reduce", "recursive_doubling", size), nbytes, spread, chunk_bytes=1 << 30
        )
        rounds = size.bit_length() - 1
        assert doubling == pytest.approx(rounds * (PLAIN.inter_alpha + nbytes * PLAIN.inter_beta))


def test_virtual_time_of_many_chunks_is_that_of_the_bytes() -> None:
    spread = Topology((0, 1, 2, 3), PLAIN)
    nbytes = 64 * MIB
    time = virtual_time(plans_of("all_reduce", "ring", 4), nbytes, spread)
    moved = 1.5 * nbytes * PLAIN.inter_beta
    assert moved <= time <= 1.02 * moved


def test_virtual_time_shares_the_port_of_a_host() -> None:
    """Two pairs across the same two hosts take twice as long as one pair."""
    pair = virtual_time(plans_of("all_to_all", "pairwise", 2), MIB, Topology((0, 1), PLAIN))
    four = Topology(
        (0, 0, 1, 1), Network(intra_beta=0.0, inter_alpha=0.0, inter_beta=1e-9, inter_overhead=0.0)
    )
    crossing = virtual_time(plans_of("all_to_all", "pairwise", 4), 2 * MIB, four)
    assert crossing == pytest.approx(4 * (pair - PLAIN.inter_alpha), rel=0.1)


@pytest.mark.parametrize("nbytes", [4, 64 * KIB, 8 * MIB])
@pytest.mark.parametrize("local_sizes", [(1,) * 4, (1,) * 8, (2, 2), (4, 4), (3, 2, 1), (4, 1)])
def test_the_choice_is_near_the_best_on_the_virtual_clock(local_sizes: tuple[int, ...], nbytes: int) -> None:
    there = topology(*local_sizes)
    choice = choose("all_reduce", nbytes, there)
    times = {
        name: virtual_time(
            plans_of("all_reduce", name, there.size, hosts=there.hosts), nbytes, there, choice.chunk_bytes
        )
        for name in estimate("all_reduce", nbytes, there)
    }
    assert times[choice.algorithm] <= 1.35 * min(times.values())


MEASURED = SmallCosts(workers=(3e-5, 3e-5), reducer=(1e-5, 5e-5), others={"broadcast": (2e-5, 2e-5)})


@pytest.mark.parametrize("nbytes", [SPLIT_BYTES, 100 * MIB])
@pytest.mark.parametrize("small", [None, MEASURED])
def test_reducers_take_part_in_all_large_all_reduces(nbytes: int, small: SmallCosts | None) -> None:
    there, reducers = topology(*[1] * 8), Reducers(small)
    choice = choose("all_reduce", nbytes, there, reducers)
    assert (choice.algorithm, choice.reducers) == ("ring", True)
    assert "split between reducers and a ring" in choice.reason
    assert choose("broadcast", nbytes, there, reducers) == choose("broadcast", nbytes, there)


def test_the_workers_own_slice_goes_by_hosts_where_ranks_share_them() -> None:
    there = topology(2, 1)
    choice = choose("all_reduce", 64 * MIB, there, Reducers())
    assert (choice.algorithm, choice.reducers) == ("hierarchical", True)
    assert choose("all_reduce", 64 * MIB, replace(there, hierarchy="off"), Reducers()).algorithm == "ring"


def test_reducers_take_part_in_small_messages_that_are_measured_to_be_faster() -> None:
    there, reducers = topology(*[1] * 8), Reducers(MEASURED)
    own = choose("all_reduce", 64, there)
    assert choose("all_reduce", 64, there, Reducers()) == own
    choice = choose("all_reduce", 64, there, reducers)
    assert (choice.algorithm, choice.chunk_bytes, choice.reducers) == (own.algorithm, own.chunk_bytes, True)
    assert choice.reason == "64 bytes take 10 us through a reducer, 30 us without, as measured"
    slower = choose("all_reduce", 16 * KIB, there, reducers)
    assert not slower.reducers
    assert "50 us through a reducer, 30 us without" in slower.reason


def test_a_small_all_reduce_stands_in_for_what_was_measured() -> None:
    there, reducers = topology(*[1] * 8), Reducers(MEASURED)
    assert choose("broadcast", 64, there, reducers).algorithm == "recursive_doubling"
    assert choose("broadcast", 64, there, reducers).reducers
    for collective, nbytes in (("broadcast", 0), ("all_gather", 64)):
        assert choose(collective, nbytes, there, reducers) == choose(collective, nbytes, there)


def test_virtual_time_wants_the_topology_of_the_plans() -> None:
    with pytest.raises(ValueError, match="2 plans for 3 ranks"):
        virtual_time(plans_of("all_reduce", "ring", 2), 4, topology(3))


def test_choosing_and_building_load_no_numpy() -> None:
    code = (
        "import sys; from slipstream.plan import choose, registry; "
        "registry.build('all_reduce', 'ring', 0, 4); "
        "choose.choose('all_reduce', 4, choose.Topology((0, 1))); "
        "sys.exit('numpy' in sys.modules)"
    )
    source = str(Path(slipstream.__file__).resolve().parent.parent)
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, check=False).returncode == 0
    )
