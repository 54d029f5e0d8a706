"""Lanes over hosts with two interfaces: both are used, and one may go and come back while a job runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.link_check import table
from slipstream.comm.rendezvous.discovery import advertised_addresses, bind_addresses, interfaces

RANK = Path(__file__).with_name("interfaces_rank.py")
WATCH = Path(__file__).parents[2] / "benchmarks" / "lanes_rank.py"
COMMAND = [sys.executable, "-m", "slipstream", "run", "-np", "2", "--no-prefix", "--", sys.executable]

needs_lab = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root and iproute2"
)


def subnets(lanes: list[dict[str, Any]]) -> Counter[str]:
    """How many bulk lanes are up in each of the lab's networks."""
    return Counter(lane["remote"][:5] for lane in lanes if not lane["control"] and lane["up"])


def test_several_interfaces_may_be_named() -> None:
    (loopback,) = [one for one in interfaces() if one.loopback]
    assert advertised_addresses(f"{loopback.name},127.0.0.1") == [*loopback.ipv4, *loopback.ipv6, "127.0.0.1"]
    assert bind_addresses("127.0.0.1") == ["127.0.0.1"]
    assert bind_addresses("127.0.0.1,lo") == ["127.0.0.1", *loopback.ipv4[1:], *loopback.ipv6]
    with pytest.raises(ValueError, match="'no-such'"):
        advertised_addresses("lo,no-such")


def test_the_probe_sums_up_each_pair_of_interfaces() -> None:
    def lane(local: str, remote: str, sent: int, control: bool = False) -> dict[str, Any]:
        plain = {
            "up": bool(local),
            "rate": 1e6,
            "rtt": 1e-3,
            "retransmits": 0,
            "zero_copied": 0,
            "zero_copy_from": 0,
        }
        return {"local": local, "remote": remote, "sent": sent, "control": control, **plain}

    lanes = [lane("10.0.0.1:5", "10.0.0.2:9", 0, control=True)]
    lanes += [lane(f"10.0.0.1:{i}", "10.0.0.2:9", 10**6) for i in range(3)]
    found = {
        "rate": 1e9,
        "round_trip": 1e-4,
        "link": {"lanes": lanes, "lost": 0, "replaced": 0, "encrypted": False},
    }
    assert "3 lanes" not in table(found)
    lanes.append(lane("10.0.1.1:7", "10.0.1.2:9", 10**6))
    lines = table(found).splitlines()
    assert re.fullmatch(r"3 lanes +10.0.0.1 +10.0.0.2 +3.0 MB +75 %", lines[-2])
    assert re.fullmatch(r"1 lanes +10.0.1.1 +10.0.1.2 +1.0 MB +25 %", lines[-1])


def test_the_probe_sums_up_lanes_that_are_closed() -> None:
    plain = {
        "rate": 0.0,
        "rtt": 0.0,
        "retransmits": 0,
        "zero_copied": 0,
        "zero_copy_from": 0,
        "control": False,
    }
    lanes = [plain | {"local": "10.0.0.1:1", "remote": "10.0.0.2:9", "sent": 6 * 10**6, "up": True}]
    lanes += [plain | {"local": "", "remote": "", "sent": 10**6, "up": False} for _ in range(2)]
    link = {"lanes": lanes, "lost": 0, "replaced": 0, "encrypted": False}
    lines = table({"rate": 1e9, "round_trip": 1e-4, "link": link}).splitlines()
    assert lines[3:] == ["2 lanes are closed by now; sent before: 2.0 MB (25 %)"]


@pytest.mark.alone
@needs_lab
def test_lanes_carry_what_all_interfaces_can() -> None:
    from slipstream.lab import Lab

    with Lab(2, rate="200mbit", interfaces=2) as lab:
        rank = [str(WATCH), "4", str(16 << 20)]
        done = lab.run(
            "h1", [*COMMAND, *rank], env={"SLIPSTREAM_LANES": "16"}, capture_output=True, text=True
        )
    found = json.loads(done.stdout.splitlines()[-1])
    (link,) = found["links"]
    assert subnets(link["lanes"]) == {"10.77": 8, "10.78": 8}
    # In a 16 MiB all-reduce between two ranks each sends 16 MiB: over one interface that takes longer than it took
    # in the fastest call. Other work on the machine can slow calls down, and never speeds one up.
    fastest = min(end - start for start, end in found["calls"])
    assert 8 * (16 << 20) / fastest > 1.1 * 200e6


class Job:
    """Checked all-reduces on two hosts of a lab that go on until told to end; see interfaces_rank.py."""

    def __init__(self, lab: Any, folder: Path, **env: str) -> None:
        self.stop, self.output = folder / "stop", folder / "output"
        with self.output.open("wb") as file:
            command = [*COMMAND, str(RANK), str(self.stop)]
            self.process = lab.popen("h1", command, env=env, stdout=file, stderr=subprocess.STDOUT)

    def last(self) -> dict[str, Any]:
        complete = self.output.read_text().rpartition("\n")[0]
        lines = [line for line in complete.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {"call": 0, "lanes": []}

    def wait_for(self, what: Any, seconds: float = 60) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not what(found := self.last()):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < end, self.output.read_text()[-3000:]
            time.sleep(0.01)  # a poll of a file that another process writes
        return found

    def goes_on(self, calls: int = 20) -> dict[str, Any]:
        now = self.last()["call"]
        return self.wait_for(lambda found: found["call"] >= now + calls)

    def end(self) -> None:
        self.stop.touch()
        assert self.process.wait(60) == 0, self.output.read_text()


@needs_lab
@pytest.mark.parametrize("interface", [1, 2])  # the control lane goes over the first
def test_an_interface_may_go_and_come_back(interface: int, tmp_path: Path) -> None:
    from slipstream.lab import Lab

    left = {"10.78" if interface == 1 else "10.77": 6}
    with Lab(2, rate="200mbit", interfaces=2) as lab:
        job = Job(lab, tmp_path, SLIPSTREAM_LANES="6")
        job.wait_for(lambda found: found["call"] > 10 and subnets(found["lanes"]) == {"10.77": 3, "10.78": 3})
        lab.cut("h2", interface)
        job.wait_for(lambda found: subnets(found["lanes"]) == left)
        job.goes_on()
        lab.heal("h2", interface)
        job.wait_for(
            lambda found: (
                min(subnets(found["lanes"]).values(), default=0) >= 2 and len(subnets(found["lanes"])) == 2
            )
        )
        job.goes_on()
        job.end()


@needs_lab
def test_an_interface_that_is_down_at_the_start_costs_nothing(tmp_path: Path) -> None:
    from slipstream.lab import Lab

    with Lab(2, rate="200mbit", interfaces=2) as lab:
        lab.cut("h2", 2)
        job = Job(lab, tmp_path, SLIPSTREAM_LANES="4")
        job.wait_for(lambda found: found["call"] > 10 and subnets(found["lanes"]) == {"10.77": 4})
        lab.heal("h2", 2)
        job.wait_for(lambda found: len(subnets(found["lanes"])) == 2)
        job.end()
