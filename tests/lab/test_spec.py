"""Descriptions of labs: arguments, files, events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.lab.spec import Event, HostSpec, Spec, load, make, parse_event


def test_counts() -> None:
    spec = make(3, reducers=2, rate="500mbit", slots=2)
    assert [host.name for host in spec.hosts] == ["h1", "h2", "h3", "r1", "r2"]
    assert [host.slots for host in spec.hosts] == [2, 2, 2, 0, 0]
    assert [host.reducer for host in spec.hosts] == [False] * 3 + [True] * 2
    assert {host.rate for host in spec.hosts} == {500_000_000}
    assert spec.address("h1") == "10.77.0.1"
    assert spec.address("r2") == "10.77.0.5"


def test_interfaces() -> None:
    spec = make(3, interfaces=2, rate="100mbit")
    assert [spec.address("h3", k) for k in (1, 2)] == ["10.77.0.3", "10.78.0.3"]
    assert spec.common_rate == 200_000_000
    assert Spec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


def test_hosts_that_differ() -> None:
    spec = make(
        ["a", {"name": "b", "rate": "50mbit"}, {"slots": 3}], rate="1gbit", paths=["100mbit", "200mbit"]
    )
    assert spec.hosts[0] == HostSpec("a", 1, 10**9, (10**8, 2 * 10**8))
    assert spec.hosts[1].rate == 5 * 10**7
    assert (spec.hosts[2].name, spec.hosts[2].slots) == ("h3", 3)
    assert spec.common_rate is None


def test_the_line_carries_all_paths_unless_a_rate_is_given() -> None:
    assert make(2, paths="100mbit,200mbit").common_rate == 300_000_000
    assert make(2, paths="100mbit,200mbit", rate="250mbit").common_rate == 250_000_000
    assert make(2).common_rate is None


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_file_says_the_same(tmp_path: Path, suffix: str) -> None:
    data = {
        "hosts": [{"name": "a", "delay": "2ms", "loss": "0.5%"}, "b"],
        "reducers": 1,
        "rate": "500mbit",
        "mtu": 1500,
        "family": "ipv6",
        "events": ["5s:rate:b:50mbit"],
    }
    path = tmp_path / f"lab.{suffix}"
    if suffix == "yaml":
        yaml = pytest.importorskip("yaml")
        path.write_text(yaml.safe_dump(data))
    else:
        path.write_text(json.dumps(data))
    spec = make(**load(path))
    assert spec.hosts[0] == HostSpec("a", 1, 500_000_000, (), 0.002, 0.005)
    assert spec.hosts[2].reducer
    assert spec.mtu == 1500
    assert spec.address("a") == "fd77::1"
    assert spec.events == (Event(5, "rate", "b", 50_000_000),)
    assert Spec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hosts": 0}, "0 hosts are not 1 to 250"),
        ({"hosts": ["a", "a"]}, "same name"),
        ({"hosts": ["A b"]}, "not a host name"),
        ({"hosts": ["hub"]}, "not hub"),
        ({"hosts": [{"name": "a", "rat": "1gbit"}]}, "host a: unknown key 'rat'; did you mean rate?"),
        ({"hosts": 2, "rate": "fast"}, "not a rate"),
        ({"hosts": 2, "paths": "100mbit"}, "1 paths are not 2 to 16"),
        ({"hosts": 2, "loss": "100%"}, "loss"),
        ({"hosts": 2, "mtu": 99}, "MTU"),
        ({"hosts": 2, "events": ["1s:cut:h3"]}, "no host 'h3'; it has h1, h2"),
        ({"hosts": 2, "events": ["1s:path:h1:1:5mbit"]}, "h1 has 0 paths"),
        ({"hosts": 2, "interfaces": 9}, "9 interfaces are not 1 to 8"),
        ({"hosts": 2, "events": ["1s:cut:h1:2"]}, "hosts have 1 interfaces"),
        ({"hosts": [], "reducers": 1}, "no reducer"),
    ],
)
def test_what_makes_no_sense(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("?", r"\?")):
        make(**arguments)


@pytest.mark.parametrize("text", ["hosts: [", "- 4", "hosts: 4\nratte: 1gbit\n"])
def test_bad_files(tmp_path: Path, text: str) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"lab\.yaml"):
        load(path)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("5s:rate:h2:50mbit", Event(5, "rate", "h2", 50_000_000)),
        ("250ms:path:h2:4:50mbit", Event(0.25, "path", "h2", 50_000_000, 4)),
        ("9s:cut:h3", Event(9, "cut", "h3")),
        ("9s:cut:h3:2", Event(9, "cut", "h3", interface=2)),
        ("2m:heal:h3", Event(120, "heal", "h3")),
    ],
)
def test_events(text: str, event: Event) -> None:
    assert parse_event(text) == event
    assert parse_event(str(event)) == event


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5s",
        "5s:burn:h1",
        "5s:rate:h2",
        "5s:cut:h2:50mbit",
        "x:cut:h2",
        "5s:path:h2:a:1gbit",
        "5s:cut:h2:x",
    ],
)
def test_bad_events(text: str) -> None:
    with pytest.raises(ValueError, match="event"):
        parse_event(text)
