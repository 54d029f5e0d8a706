"""Ways between hosts that fail for less than the heartbeat cost time alone; beyond it the error says what failed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from comm.outage_jobs import card_down, lab_job, local_job, needs_lab


@needs_lab
@pytest.mark.parametrize("seconds", [0.5, 4])
@pytest.mark.parametrize("rank", [0, 1])  # 0 dials, 1 is dialled
def test_connections_that_break_while_a_card_is_down_are_made_again(
    rank: int, seconds: float, tmp_path: Path
) -> None:
    with lab_job(tmp_path, SLIPSTREAM_HEARTBEAT="10") as (lab, job):
        job.go()
        with card_down(lab, f"h{rank + 1}", seconds):
            job.reset(rank)
        job.goes_on()
        job.end()


@needs_lab
@pytest.mark.parametrize("host", ["h1", "h2"])
def test_a_card_that_is_down_when_ranks_first_need_each_other(host: str, tmp_path: Path) -> None:
    with lab_job(tmp_path, SLIPSTREAM_HEARTBEAT="10") as (lab, job):
        with card_down(lab, host, 1):
            (tmp_path / "go").touch()
        job.goes_on()
        job.end()


@needs_lab
def test_a_route_that_is_missing_for_a_while(tmp_path: Path) -> None:
    route = ["unreachable", "10.77.0.1/32"]
    with lab_job(tmp_path, SLIPSTREAM_HEARTBEAT="10") as (lab, job):
        job.go()
        lab.run("h2", ["ip", "route", "add", *route])
        job.reset(0)
        job.reset(1)
        time.sleep(1)  # the outage is the thing tested
        lab.run("h2", ["ip", "route", "del", *route])
        job.goes_on()
        job.end()


@needs_lab
def test_beyond_the_heartbeat_the_error_says_what_cannot_be_reached_and_why(tmp_path: Path) -> None:
    with lab_job(tmp_path, SLIPSTREAM_HEARTBEAT="2") as (lab, job):
        job.go()
        begin = time.monotonic()
        with card_down(lab, "h1", 0):
            job.reset(0)
            text = job.fails()
            assert time.monotonic() - begin < 30  # far more than it takes: this machine may be busy
        lost = next(line for line in text.splitlines() if "PeerLost: " in line and "rank 1 (host h2)" in line)
        assert "Network is unreachable" in lost
        assert "SLIPSTREAM_HEARTBEAT" in lost
        assert "died" not in lost


@pytest.mark.parametrize("resets", [0, 1])  # by the rank that goes on
def test_a_stop_of_six_seconds_and_a_reset_cost_nothing(resets: int, tmp_path: Path) -> None:
    job = local_job(tmp_path, 2, SLIPSTREAM_HEARTBEAT="10")
    job.go()
    stopped = int((tmp_path / f"ready-{1 - resets}").read_text())
    os.kill(stopped, signal.SIGSTOP)
    try:
        job.reset(resets)
        time.sleep(6)  # the freeze is the thing tested
    finally:
        os.kill(stopped, signal.SIGCONT)
    job.goes_on()
    job.end()


# ---- packets that vanish for their size

# Bits of a packet's length that are to be 0: u32 filters compare bits.
_SHORTER_THAN = {2048: "0xf800", 1024: "0xfc00", 512: "0xfe00"}


def drop_large_packets(lab: Any, size: int) -> None:
    """From now on the lab's switch drops packets of ``size`` bytes and more without a word."""
    from slipstream.lab.namespaces import batch

    for number, host in enumerate(lab.hosts, 1):
        lab.run(host, ["ip", "link", "set", "eth0", "gso_max_segs", "1"])  # real packets
        port = f"p{number}"
        batch(
            lab._record.hub,
            "tc",
            [
                f"qdisc replace dev {port} root handle 1: htb default 2",
                f"class add dev {port} parent 1: classid 1:1 htb rate 10gbit",
                f"class add dev {port} parent 1: classid 1:2 htb rate 10gbit",
                f"qdisc add dev {port} parent 1:2 handle 20: bfifo limit 1b",  # no packet fits
                f"filter add dev {port} parent 1: prio 1 protocol ip u32 "
                f"match u16 0 {_SHORTER_THAN[size]} at 2 flowid 1:1",
                f"filter add dev {port} parent 1: prio 2 protocol arp u32 match u8 0 0 at 0 flowid 1:1",
            ],
        )


@needs_lab
@pytest.mark.parametrize("size", [2048, 1024])
def test_a_hop_that_drops_large_packets_gets_smaller_ones(size: int, tmp_path: Path) -> None:
    with lab_job(tmp_path, rate=None) as (lab, job):
        drop_large_packets(lab, size)
        (tmp_path / "go").touch()
        job.goes_on()
        job.wait_for(lambda: "bytes do not reach rank 1, small ones do" in job.output())
        job.end()


@needs_lab
def test_a_job_starts_though_large_packets_are_dropped(tmp_path: Path) -> None:
    """What the store answers to each of six ranks is larger than a packet that passes."""
    with lab_job(tmp_path, 6, rate=None, before=lambda lab: drop_large_packets(lab, 1024)) as (_, job):
        (tmp_path / "go").touch()
        job.goes_on()
        job.end()


@needs_lab
def test_a_hop_may_begin_to_drop_large_packets(tmp_path: Path) -> None:
    with lab_job(tmp_path, rate=None) as (lab, job):
        job.go()
        drop_large_packets(lab, 2048)
        job.goes_on()
        job.end()


@needs_lab
def test_a_hop_that_drops_all_but_small_packets_is_named(tmp_path: Path) -> None:
    with lab_job(tmp_path, rate=None) as (lab, job):
        drop_large_packets(lab, 512)
        (tmp_path / "go").touch()
        text = job.fails()
        assert "packets larger than" in text
        assert "do not reach rank 1 (host h2), small ones do: set the MTU" in text
