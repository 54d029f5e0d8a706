"""The native executor with 2 to 64 ranks: every algorithm that may be picked, in every class of sizes.

Ranks are threads, and bytes move within the process. Each plan is that of `slipstream.plan.choose`, for ranks on one
host, on a host each, three a host (with a rest or without), and (where they divide) equally many on each host. NumPy
checks the values. Rings are picked for so many bytes that the quick tests run them on fewer, 1 MiB of all ranks. The
slow ones run each pick on what it is picked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from plan.many_ranks import LIBRARY, ManyRanks, many_ranks
from plan.reference import make, plans_of
from slipstream.plan.choose import Topology, choose
from slipstream.plan.registry import collectives

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="the native tests are not built: make native-build"
)

KIB, MIB = 1 << 10, 1 << 20
ELEMENT = 8
SIZES = range(2, 65)
LARGEST = 8 * MIB  # beyond that every pick is one of 4 MiB
BYTES = 8 * MIB  # of all ranks together: more than that is no quick run
Pick = tuple[str, str, int]  # collective, algorithm, chunk_bytes


def topologies(size: int) -> Iterator[tuple[int, ...]]:
    """The hosts of the ranks: one, three ranks a host, one rank a host, and what divides ``size``."""
    yield (0,) * size
    yield tuple(range(size))
    if size > 3:
        yield tuple(rank // 3 for rank in range(size))
    for local in range(2, size):
        if size % local == 0 and local != 3:
            yield tuple(rank // local for rank in range(size))


def picks(hosts: tuple[int, ...]) -> dict[Pick, list[int]]:
    """What is picked for these hosts, and the sizes in bytes that it is picked for, rising."""
    found: dict[Pick, list[int]] = {}
    for collective in collectives():
        for nbytes in (0, *(1 << magnitude for magnitude in range(3, LARGEST.bit_length()))):
            choice = choose(collective, nbytes, Topology(hosts))
            found.setdefault((collective, choice.algorithm, choice.chunk_bytes), []).append(nbytes)
    return found


def check(ranks: ManyRanks, pick: Pick, elements: int, chunk_bytes: int) -> None:
    """Run what was picked on ``elements`` 64-bit integers, cut between the ranks as evenly as they can be."""
    collective, algorithm, _ = pick
    size = len(ranks.hosts)
    plans = plans_of(collective, algorithm, size, elements % size, ranks.hosts)
    cut = np.diff(np.arange(size + 1) * elements // size)
    case = make(
        collective,
        size,
        plans[0].blocks,
        elements % size,
        np.tile(cut, (size, 1)),
        np.random.default_rng(elements),
    )
    outputs = ranks.run(plans, case, chunk_bytes)
    for rank, (output, expected) in enumerate(zip(outputs, case.expected, strict=True)):
        right = np.array_equal(
            output[: expected.size], expected
        )  # a rank that is no root has scratch for output
        assert right, f"{pick} of {elements} elements on {ranks.hosts}: wrong on rank {rank}"


@pytest.mark.parametrize("size", SIZES)
def test_where_each_pick_begins(size: int) -> None:
    """Every all-reduce at the least size it is picked for, or what is quick; the others take turns with the sizes."""
    one_host, host_each, *others = topologies(size)
    turns = [
        host_each,
        *([others[0]] if others and size % 3 != 2 else []),
        *([one_host] if size % 4 == 3 else []),
    ]
    for hosts in turns:
        with many_ranks(hosts) as ranks:
            for pick, sizes in picks(hosts).items():
                its_turn = pick[0] == "all_reduce" or sum(pick[0].encode()) % 8 == size % 8
                if its_turn:
                    least = sizes[0] if sizes[0] * size <= BYTES else MIB // size
                    check(ranks, pick, least // ELEMENT + size % 3, pick[2])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_every_size(size: int) -> None:
    """Every power of two that is picked, in turn exactly, one element more, and one less; the largest in chunks.

    What is picked for larger sizes alone runs once.
    """
    for hosts in list(topologies(size))[:5]:
        with many_ranks(hosts) as ranks:
            for pick, sizes in picks(hosts).items():
                few = [nbytes // ELEMENT for nbytes in sizes if nbytes * size <= 2 * BYTES]
                for number, elements in enumerate(few):
                    check(ranks, pick, max(0, elements + number % 3 - 1), pick[2])
                if few:
                    check(ranks, pick, few[-1] + size // 2, 20 * KIB)  # larger than what travels unasked
                else:
                    check(ranks, pick, sizes[0] // ELEMENT + size % 3, pick[2])


@pytest.mark.parametrize(
    "elements", [4 * MIB // ELEMENT + 32, pytest.param(9 * MIB // ELEMENT, marks=pytest.mark.slow)]
)
def test_ranges_larger_than_a_message(elements: int) -> None:
    """One message carries 4 MiB: what is folded is sent block by block, and of 9 MiB the first half, too."""
    with many_ranks(range(33)) as ranks:
        check(ranks, ("all_reduce", "halving_doubling", 0), elements, 512 * KIB)
