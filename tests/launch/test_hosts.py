"""Hosts, slots and places."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.launch.hosts import Host, parse_hostfile, parse_hosts, place


def test_hosts() -> None:
    assert parse_hosts("a:2,b , user@c.d-e:3,a") == [Host("a", 3), Host("b", 1), Host("user@c.d-e", 3)]


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert parse_hosts("[::1]:2,[fd00::1], [::1] , a:3") == [
        Host("::1", 3),
        Host("fd00::1", 1),
        Host("a", 3),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("", "a:", "a:0", "a,,b", "a b", "-oProxyCommand=x", "a:1:2", "a;b", "-l@b", "-Fx@b:2"),
        *("::1", "fd00::1", "[::1", "::1]", "[::1]2", "[::1]:", "[::1]:0", "[]", "[a.b]", "[::1]:2:3"),
    ],
)
def test_bad_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="expected host"):
        parse_hosts(text)


def test_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# the cluster\n\nnode1 slots=4\nnode2:2   # half\n10.0.0.3\n")
    assert parse_hostfile(path) == [Host("node1", 4), Host("node2", 2), Host("10.0.0.3", 1)]
    path.write_text("[fd00::1]:2\n[fd00::2] slots=3\n[fd00::3] reducer\n")
    assert parse_hostfile(path) == [Host("fd00::1", 2), Host("fd00::2", 3), Host("fd00::3", 0, True)]


@pytest.mark.parametrize("text", ["", "# nothing\n", "a slots=x\n", "a slots=0\n", "a 4\n", "-x slots=1\n"])
def test_bad_hostfile(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(ValueError, match="hosts"):
        parse_hostfile(path)


def test_places() -> None:
    placed = place(4, [Host("a", 3), Host("b", 5)])
    rows = [(p.rank, p.host, p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in placed]
    assert rows == [(0, "a", 0, 3, 0, 2), (1, "a", 1, 3, 0, 1), (2, "a", 2, 3, 0, 1), (3, "b", 0, 1, 1, 2)]


def test_too_few_slots() -> None:
    with pytest.raises(
        ValueError, match=r"2 ranks do not fit the 1 slot given \(a:1\); .* without :N has one slot"
    ):
        place(2, parse_hosts("a"))
    with pytest.raises(
        ValueError, match=r"3 ranks do not fit the 2 slots given \(a:2\); raise slots or lower -np"
    ):
        place(3, parse_hosts("a:2"))
    with pytest.raises(ValueError, match=r"5 ranks do not fit the 4 slots given \(a:3, b:1\)"):
        place(5, [Host("a", 3), Host("b", 1)])


@given(slots=st.lists(st.integers(1, 5), min_size=1, max_size=6), data=st.data())
def test_every_rank_is_placed_once(slots: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, sum(slots)))
    placed = place(count, [Host(f"h{i}", n) for i, n in enumerate(slots)])
    assert [p.rank for p in placed] == list(range(count))
    assert len({(p.host, p.local_rank) for p in placed}) == count
    assert len({(p.local_rank, p.cross_rank) for p in placed}) == count
    for p in placed:
        assert p.local_size == sum(q.host == p.host for q in placed)
        assert p.cross_size == sum(q.local_rank == p.local_rank for q in placed)
