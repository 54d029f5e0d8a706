"""Sizes, factors and limits of collectives: pure functions."""

from __future__ import annotations

import pytest

from slipstream.bench.collective.catalogue import (
    COLLECTIVES,
    bus_factor,
    check_operation,
    growing_sizes,
    memory_bytes,
    network_bytes,
    network_seconds,
    parse_sizes,
    shape,
    shapes,
)
from slipstream.bench.table import size_text

MIB = 1 << 20


def test_lists_of_sizes() -> None:
    assert parse_sizes("4,64K,1.5M") == [4, 65536, 3 * MIB // 2]
    with pytest.raises(ValueError, match="is not a size"):
        parse_sizes("4,,5")


def test_growing_sizes() -> None:
    assert growing_sizes(8, 64, 2) == [8, 16, 32, 64]
    assert growing_sizes(4, 30, 2.5) == [4, 10, 25]
    assert growing_sizes(1, 3, 1.5) == [1, 2]  # what rounds to the same is measured once
    for wrong in ((0, 8, 2), (9, 8, 2), (1, 8, 1)):
        with pytest.raises(ValueError, match="--"):
            growing_sizes(*wrong)


@pytest.mark.parametrize(
    ("name", "nbytes", "elements", "count", "actual"),
    [
        ("all_reduce", 4096, 1024, 1024, 4096),
        ("all_reduce", 1, 1, 1, 4),
        ("send_recv", 10, 2, 2, 8),
        ("all_gather", 4096, 1023, 341, 4092),  # a part for each of 3 ranks
        ("reduce_scatter", 4, 3, 1, 12),
        ("barrier", 4096, 0, 0, 0),
    ],
)
def test_a_size_divides_as_it_must(name: str, nbytes: int, elements: int, count: int, actual: int) -> None:
    found = shape(COLLECTIVES[name], nbytes, 4, 3)
    assert (found.elements, found.count, found.nbytes) == (elements, count, actual)


def test_sizes_that_come_to_the_same_are_measured_once() -> None:
    found = shapes(COLLECTIVES["gather"], [4, 8, 12, 24], 4, 3)
    assert [one.nbytes for one in found] == [12, 24]


def test_names_of_sizes() -> None:
    assert [size_text(n) for n in (4, 65536, 3 * MIB // 2, 1 << 30)] == ["4 B", "64 KiB", "1.5 MiB", "1 GiB"]


def test_bitwise_operations_need_integers() -> None:
    check_operation("band", "uint8")
    check_operation("sum", "float32")
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ValueError, match="on integers"):
            check_operation("bxor", dtype)


def test_factors_of_bus_bandwidth() -> None:
    """Those of nccl-tests (doc/PERFORMANCE.md)."""
    wanted = {"all_reduce": 1.5, "reduce_scatter": 0.75, "all_gather": 0.75, "all_to_all": 0.75}
    wanted |= {"gather": 0.75, "scatter": 0.75, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0}
    assert {name: bus_factor(name, 4) for name in wanted} == wanted


def test_memory_limit() -> None:
    wanted = {"all_reduce": 800, "reduce_scatter": 500, "all_gather": 500, "broadcast": 400, "reduce": 500}
    wanted |= {"gather": 200, "scatter": 200, "all_to_all": 800, "send_recv": 800, "barrier": 0}
    assert {name: memory_bytes(name, 100, 4) for name in COLLECTIVES} == wanted


@pytest.mark.parametrize(
    ("name", "one_a_host", "two_a_host"),
    [
        ("all_reduce", 1.5, 1.0),  # what ranks of a host add up among themselves crosses no link
        ("reduce_scatter", 0.75, 0.5),
        ("all_gather", 0.75, 0.5),
        ("broadcast", 1.0, 1.0),
        ("reduce", 1.0, 1.0),
        ("gather", 0.75, 0.5),
        ("scatter", 0.75, 0.5),
        ("all_to_all", 0.75, 1.0),  # two ranks, each with half of its bytes for the other host
        ("send_recv", 1.0, 1.0),
        ("barrier", 0.0, 0.0),
    ],
)
def test_network_limit_of_four_ranks(name: str, one_a_host: float, two_a_host: float) -> None:
    assert network_bytes(name, 1000, [0, 1, 2, 3]) == pytest.approx(1000 * one_a_host)
    assert network_bytes(name, 1000, [0, 0, 1, 1]) == pytest.approx(1000 * two_a_host)
    assert network_bytes(name, 1000, [0, 0, 0, 0]) == 0


def test_network_limit_of_unequal_hosts() -> None:
    """Two ranks on one host, one on the other."""
    hosts = [0, 0, 1]
    assert network_bytes("all_gather", 900, hosts) == pytest.approx(600)  # the lone rank gets two parts
    assert network_bytes("gather", 900, hosts, root=0) == pytest.approx(300)
    assert network_bytes("gather", 900, hosts, root=2) == pytest.approx(600)
    assert network_bytes("all_to_all", 900, hosts) == pytest.approx(600)
    assert network_bytes("send_recv", 900, [0, 1, 0, 1]) == 1800  # ranks dealt out: every neighbour is afar


def test_seconds_of_the_network_limit() -> None:
    assert network_seconds("all_reduce", 4 * MIB, [0, 1, 2, 3], 500e6) == pytest.approx(0.100663, rel=1e-4)
    assert network_seconds("all_reduce", 4 * MIB, [0, 0], 500e6) is None
    assert network_seconds("barrier", 0, [0, 1], 500e6) is None
