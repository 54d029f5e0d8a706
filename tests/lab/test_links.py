"""The commands that shape links, and which path a connection takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.lab.links import neighbours, path_of, reshape, shape
from slipstream.lab.spec import HostSpec, make

PATHS = (100_000_000, 200_000_000, 400_000_000, 800_000_000)
ports = st.integers(1, 65535)


@given(ports, ports, st.integers(2, 16))
def test_a_connection_takes_the_same_path_both_ways(a: int, b: int, paths: int) -> None:
    assert path_of(a, b, paths) == path_of(b, a, paths)
    assert 0 <= path_of(a, b, paths) < paths


@pytest.mark.parametrize("paths", range(2, 17))
def test_even_ports_spread_over_all_paths(paths: int) -> None:
    counts = Counter(path_of(port, 50001, paths) for port in range(32768, 60999, 2))
    assert set(counts) == set(range(paths))
    assert max(counts.values()) <= 2.01 * min(counts.values())


@pytest.mark.parametrize("protocol", ["ip", "ipv6"])
@given(source=ports, target=ports, paths=st.integers(2, 16))
def test_the_filters_say_the_same(protocol: str, source: int, target: int, paths: int) -> None:
    commands = shape(HostSpec("a", paths=tuple(range(10**6, 10**6 * (paths + 1), 10**6))), "eth0")
    found = []
    for words in (command.split() for command in commands if f" protocol {protocol} u32" in command):
        wanted, mask = int(words[words.index("sport") + 1]), int(words[words.index("sport") + 2], 16)
        target_wanted = int(words[words.index("dport") + 1])
        if source & mask == wanted and target & mask == target_wanted:
            found.append(int(words[-1].removeprefix("1:"), 16) - 0x10)
    assert found == [path_of(source, target, paths)]


def test_no_rate_no_shaping() -> None:
    assert shape(HostSpec("a"), "eth0") == []
    assert shape(HostSpec("a"), "p1") == []


def test_both_directions_have_the_rate_and_one_has_the_paths() -> None:
    host = HostSpec("a", rate=500_000_000, paths=PATHS)
    assert "rate 500000000bit" in " ".join(shape(host, "p1"))
    assert not [command for command in shape(host, "p1") if "filter" in command]
    out = " ".join(shape(host, "eth0"))
    for path in PATHS:
        assert f"ceil {path}bit" in out


def test_delay_and_loss_are_netem() -> None:
    host = HostSpec("a", rate=10**9, delay=0.002, loss=0.001)
    assert "netem limit 100000 delay 2000us loss 0.1%" in shape(host, "eth0")[-1]
    assert "netem" not in " ".join(shape(host, "p1"))
    assert shape(HostSpec("a", delay=0.002), "eth0")[0].endswith("netem limit 100000 delay 2000us")


@pytest.mark.parametrize("device", ["eth0", "p1"])
def test_a_new_rate_changes_every_queue_and_removes_none(device: str) -> None:
    for old in (HostSpec("a", rate=10**9), HostSpec("a", paths=PATHS)):
        new = replace(old, rate=5 * 10**7)
        changed = {
            c.split()[c.split().index("classid") + 1] for c in reshape(old, new, device) if "class" in c
        }
        added = {c.split()[c.split().index("classid") + 1] for c in shape(old, device) if "class add" in c}
        assert changed == added - ({"1:1"} if old.paths and device == "eth0" else set())
        assert all(" change " in c for c in reshape(old, new, device))


def test_from_no_limit_to_a_rate_and_back() -> None:
    free, slow = HostSpec("a"), HostSpec("a", rate=10**7)
    assert reshape(free, slow, "eth0") == shape(slow, "eth0")
    assert reshape(slow, free, "eth0") == ["qdisc del dev eth0 root"]


@pytest.mark.parametrize(
    ("hosts", "interfaces", "told"), [(2, 1, 0), (23, 1, 0), (24, 1, 23), (17, 2, 32), (64, 1, 63)]
)
def test_hosts_of_large_labs_are_told_their_neighbours(hosts: int, interfaces: int, told: int) -> None:
    """What all hosts of a lab learn stays within the table that they share."""
    spec = make(hosts, interfaces=interfaces)
    commands = neighbours(spec, spec.hosts[-1])
    assert len([one for one in commands if one.startswith("neigh add ")]) == told
    assert len(set(commands)) == len(commands)
    # An interface that gets another address forgets the neighbours it was told before.
    for device in {one.split(" dev ")[1].split()[0] for one in commands if " dev " in one}:
        first = next(one for one in commands if f" {device} " in one)
        assert first.startswith(f"link set {device} address ")
    assert told or hosts * (hosts - 1) * interfaces <= 512
