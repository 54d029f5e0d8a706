"""Shards: every rank carries some, each host all of them, once each and as evenly as can be."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.plan.shards import shard_count, shards_of


@pytest.mark.parametrize(
    ("local_sizes", "count"),
    [((1, 1, 1), 1), ((4, 4), 4), ((4, 2, 1), 4), ((3, 2, 1), 6), ((4, 3), 12), ((64, 1), 64), ((5,), 5)],
)
def test_as_many_as_make_the_work_even(local_sizes: tuple[int, ...], count: int) -> None:
    assert shard_count(local_sizes) == count


@given(hosts=st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_a_shard_has_one_carrier_on_each_host(hosts: list[int]) -> None:
    shards = shards_of(len(hosts), hosts)
    most = max(Counter(hosts).values())
    assert most <= shards.count <= 4 * most
    for shard in range(shards.count):
        carriers = shards.carriers(shard)
        assert [hosts[rank] for rank in carriers] == list(dict.fromkeys(hosts))
        assert all(shard in shards.of(rank) for rank in carriers)
    for host, ranks in enumerate(shards.hosts):
        carried = [len(shards.of(rank)) for rank in ranks]
        assert sum(carried) == shards.count
        assert 1 <= min(carried) <= max(carried) <= min(carried) + 1, host
