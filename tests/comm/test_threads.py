"""Threads that share the copying of lanes, and the CPUs that slipstream's threads keep to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from comm import ranks
from slipstream.base.cpus import format_cpus, parse_cpus
from slipstream.base.settings import Settings
from slipstream.comm.membership.affinity import chosen_cpus, cpus_near

HERE = Path(__file__).parent
SHARED = {"SLIPSTREAM_THREADS": "2", "SLIPSTREAM_LANES": "4"}
ALLOWED = sorted(os.sched_getaffinity(0))


def threads(**env: str) -> list[dict[str, str]]:
    texts = ranks.run(HERE / "threads_rank.py", 2, transport="tcp", env=env)
    found: list[dict[str, str]] = json.loads(texts[0].splitlines()[-1])
    return found


@pytest.mark.parametrize("n", [2, 4])
def test_collectives_equal_numpy_with_io_threads(n: int) -> None:
    ranks.run(HERE / "conformance_rank.py", n, transport="tcp", env=SHARED, timeout=240)


def test_resets_cost_no_value_with_io_threads() -> None:
    script = HERE.parents[1] / "benchmarks" / "lanes_rank.py"
    texts = ranks.run(script, 2, transport="tcp", args=["3", str(4 << 20), "0.02"], env=SHARED, timeout=60)
    assert json.loads(texts[0].splitlines()[-1])["resets"] > 20


def test_a_forked_child_neither_takes_part_nor_harms() -> None:
    ranks.run(HERE / "fork_rank.py", 2, transport="tcp", env=SHARED)


def test_threads_are_there_during_the_job_alone() -> None:
    before, during, after = threads(**SHARED)
    assert before == after == {}
    everywhere = format_cpus(ALLOWED)
    assert during == dict.fromkeys(("slipstream", "slipstream-io0", "slipstream-io1"), everywhere)


def test_without_the_setting_there_is_the_engine_thread_alone() -> None:
    assert set(threads()[1]) == {"slipstream"}


def test_threads_keep_to_the_chosen_cpus() -> None:
    chosen = str(ALLOWED[-1])
    during = threads(SLIPSTREAM_AFFINITY=chosen, SLIPSTREAM_THREADS="1")[1]
    assert during == {"slipstream": chosen, "slipstream-io0": chosen}


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("9,1-2", (1, 2, 9)), ("8191", (8191,)), ("4-4", (4,))],
)
def test_lists_of_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus
    assert parse_cpus(format_cpus(cpus)) == cpus


@pytest.mark.parametrize(
    "text", ["", "a", "1,", "3-1", "1-", "-1", "1,1", "0-2,2", "8192", "1 ,2", "0-3:2", "²"]
)
def test_malformed_lists_name_the_variable(text: str) -> None:
    with pytest.raises(ValueError, match=r"^SLIPSTREAM_AFFINITY: .*; or none, or auto"):
        Settings.from_environment({"SLIPSTREAM_AFFINITY": text})


@pytest.mark.parametrize("text", ["-1", "17", "two", ""])
def test_malformed_numbers_of_threads_name_the_variable(text: str) -> None:
    with pytest.raises(ValueError, match=r"^SLIPSTREAM_THREADS: expected a whole number from 0 to 16"):
        Settings.from_environment({"SLIPSTREAM_THREADS": text})


def test_a_cpu_that_is_not_ours_is_refused_with_the_cure() -> None:
    beyond = ALLOWED[-1] + 1
    with pytest.raises(
        ValueError, match=rf"^SLIPSTREAM_AFFINITY: .*CPU {beyond};.*{ALLOWED[0]}.*auto or none"
    ):
        chosen_cpus(Settings(affinity=f"{ALLOWED[0]},{beyond}"), one_host=False)


def machine(sys: Path, nodes: dict[int, str], interfaces: dict[str, str]) -> Path:
    """A /sys of NUMA nodes, by their CPUs, and of interfaces, by their node."""
    for node, cpus in nodes.items():
        (sys / f"devices/system/node/node{node}").mkdir(parents=True)
        (sys / f"devices/system/node/node{node}/cpulist").write_text(cpus + "\n")
    for name, number in interfaces.items():
        (sys / f"class/net/{name}/device").mkdir(parents=True)
        (sys / f"class/net/{name}/device/numa_node").write_text(number + "\n")
    return sys


def test_auto_means_the_node_of_the_interface(tmp_path: Path) -> None:
    sys = machine(
        tmp_path, {0: "0-3,8-11", 1: "4-7", 2: ""}, {"eth0": "1", "eth1": "0", "eth2": "-1", "eth3": "2"}
    )
    assert cpus_near("eth0", sys) == {4, 5, 6, 7}
    assert cpus_near("eth1", sys) == {0, 1, 2, 3, 8, 9, 10, 11}
    assert cpus_near("eth2", sys) == cpus_near("eth3", sys) == cpus_near("lo", sys) == set()


def test_auto_looks_below_a_bond(tmp_path: Path) -> None:
    sys = machine(tmp_path, {0: "0-1", 1: "2-3"}, {"eth0": "1", "eth1": "1", "eth2": "0"})
    for bond, members in (("bond0", ("eth0", "eth1")), ("bond1", ("eth0", "eth2"))):
        (sys / "class/net" / bond).mkdir()
        for member in members:
            (sys / "class/net" / bond / f"lower_{member}").symlink_to(sys / "class/net" / member)
    (sys / "class/net/vlan0").mkdir()
    (sys / "class/net/vlan0/lower_bond0").symlink_to(sys / "class/net/bond0")
    assert cpus_near("bond0", sys) == cpus_near("vlan0", sys) == {2, 3}
    assert cpus_near("bond1", sys) == set()  # of both nodes


def test_auto_pins_nothing_where_there_is_one_node(tmp_path: Path) -> None:
    assert cpus_near("eth0", machine(tmp_path, {0: "0-3"}, {"eth0": "0"})) == set()
    assert chosen_cpus(Settings(affinity="auto"), one_host=True) == []
    assert chosen_cpus(Settings(), one_host=False) == []


def test_auto_keeps_to_the_cpus_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = set(range(8192))
    monkeypatch.setattr("slipstream.comm.membership.affinity.cpus_near", lambda _name: everything)
    assert chosen_cpus(Settings(affinity="auto"), one_host=False) == ALLOWED
