"""Cuts, dead hosts and freezes: less than the heartbeat costs time alone, more is named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from comm import ranks
from comm.outage_jobs import RANK, Job, card_down, lab_job, local_job, needs_lab

STORE = Path(__file__).with_name("store_process.py")
PATIENCE = 60  # seconds: far more than any bound here, as this machine may be busy


def drop_all_to(lab: Any, number: int, yes: bool) -> None:
    """Whether the switch drops all that goes to a host, from 1, while what comes from it passes."""
    from slipstream.lab.namespaces import batch

    port = f"p{number}"
    batch(
        lab._record.hub,
        "tc",
        [f"qdisc add dev {port} root bfifo limit 1b" if yes else f"qdisc del dev {port} root"],
    )


@needs_lab
@pytest.mark.parametrize("number", [1, 2])
def test_a_way_that_is_cut_in_one_direction_for_less_than_the_heartbeat(number: int, tmp_path: Path) -> None:
    with lab_job(tmp_path, rate=None, SLIPSTREAM_HEARTBEAT="8") as (lab, job):
        job.go()
        drop_all_to(lab, number, True)
        time.sleep(2)  # the outage is the thing tested
        drop_all_to(lab, number, False)
        job.goes_on()
        job.end()


@needs_lab
@pytest.mark.parametrize("number", [1, 2])
def test_a_way_that_stays_cut_in_one_direction_is_named(number: int, tmp_path: Path) -> None:
    with lab_job(tmp_path, rate=None, SLIPSTREAM_HEARTBEAT="2") as (lab, job):
        job.go()
        drop_all_to(lab, number, True)
        text = job.fails(PATIENCE)
        drop_all_to(lab, number, False)
    assert re.search(r"PeerLost: .*rank [01] \(host h[12]\)", text)


@needs_lab
@pytest.mark.parametrize("host", ["h1", "h2"])  # rank 0 dials, rank 1 is dialled
def test_an_outage_that_ends_just_before_the_heartbeat(host: str, tmp_path: Path) -> None:
    # What lab commands take belongs to the outage, and the way back begins only after it: both may be longer than the
    # rest of the heartbeat.
    with lab_job(tmp_path, SLIPSTREAM_HEARTBEAT="3") as (lab, job):
        job.go()
        lab.cut(host)
        time.sleep(2.8)  # the outage is the thing tested
        lab.heal(host)
        job.goes_on()
        job.end()


@needs_lab
def test_outages_in_a_row_that_are_one(tmp_path: Path) -> None:
    with lab_job(tmp_path, SLIPSTREAM_HEARTBEAT="4") as (lab, job):
        job.go()
        for host, seconds, between in (("h2", 1.9, 0.1), ("h1", 1.9, 0)):  # the outages are the thing tested
            lab.cut(host)
            time.sleep(seconds)
            lab.heal(host)
            time.sleep(between)
        job.goes_on()
        job.end()


@needs_lab
def test_a_card_that_vanishes_is_named(tmp_path: Path) -> None:
    with lab_job(tmp_path, SLIPSTREAM_HEARTBEAT="2") as (lab, job):
        job.go()
        lab.run("h2", ["ip", "link", "del", "eth0"])
        text = job.fails(PATIENCE)
    assert re.search(r"PeerLost: .*rank [01] \(host h[12]\)", text)


@needs_lab
def test_a_host_that_has_forgotten_its_connections_is_not_waited_for(tmp_path: Path) -> None:
    # It lost power while its cable was out, and is up again: nobody listens there. Nobody else may tell rank 0 of that,
    # so there is no launcher, whose agent would.
    from slipstream.lab import Lab

    with Lab(2, rate="500mbit") as lab:
        inside = {host: lab._inside(host, [], {}) for host in lab.hosts}
        with ranks.started(
            RANK,
            2,
            transport="auto",
            args=[str(tmp_path)],
            env={**lab.environment(), "SLIPSTREAM_HEARTBEAT": "600"},
            prefix={rank: inside[host] for rank, host in enumerate(lab.hosts)},
            store_process=[*inside["h1"], sys.executable, str(STORE), lab.address("h1")],
        ) as started:
            survivor = started[0]
            (tmp_path / "output").symlink_to(survivor.output)
            job = Job.of(survivor.process, tmp_path, 2)
            job.go()
            lab.cut("h2")
            os.kill(job.pid(1), signal.SIGKILL)
            assert started[1].process.wait(PATIENCE) == -signal.SIGKILL
            with pytest.raises(subprocess.TimeoutExpired):  # it waits as long as the cable is out
                survivor.process.wait(2)
            assert "PeerLost" not in job.output()
            lab.heal("h2")
            text = job.fails(PATIENCE)  # a tenth of the heartbeat
    assert re.search(r"PeerLost: .*rank 1 \(.*nothing listens there any more", text), text


@pytest.mark.parametrize("rank", [0, 1])
def test_freezes_shorter_than_the_heartbeat_cost_nothing(rank: int, tmp_path: Path) -> None:
    job = local_job(tmp_path, 2, SLIPSTREAM_HEARTBEAT="6")
    job.go()
    pid = job.pid(rank)
    for _ in range(3):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1)  # the freeze is the thing tested
        os.kill(pid, signal.SIGCONT)
        job.goes_on()
    job.end()


@pytest.mark.slow
@needs_lab
def test_outages_one_after_another(tmp_path: Path) -> None:
    with lab_job(tmp_path, 3, SLIPSTREAM_HEARTBEAT="10") as (lab, job):
        job.go()
        for turn in range(9):
            with card_down(lab, f"h{turn % 3 + 1}", 0.5 + turn % 2):
                job.reset(turn % 3)
            job.goes_on(3)
            lab.cut(f"h{(turn + 1) % 3 + 1}")
            time.sleep(1)
            lab.heal(f"h{(turn + 1) % 3 + 1}")
            job.goes_on(3)
        job.end()
