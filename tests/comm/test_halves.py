"""Half of a job's ranks goes on only where the other half cannot: two jobs would use one name, and one checkpoint."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from comm import ranks
from comm.outage_jobs import needs_lab
from comm.test_shrink import LIMIT, SCRIPT, lines, results

STORE = Path(__file__).with_name("store_process.py")


def said(rank: ranks.Rank, key: str) -> Any:
    """What a rank has said last, once there is ``key`` in it."""
    end = time.monotonic() + LIMIT
    while True:
        over = rank.process.poll() is not None or time.monotonic() > end
        found = lines(rank)
        if found and key in found[-1]:
            return found[-1][key]
        assert not over, rank.text()
        time.sleep(0.01)  # a poll of what another process writes


def refused(rank: ranks.Rank) -> None:
    """It ends, and says that it cannot go on."""
    rank.process.wait(LIMIT)
    assert lines(rank)[-1].get("error") == "Aborted", rank.text()


def test_who_comes_when_the_others_have_gone_on_cannot(tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, args=["late", str(tmp_path)]) as job:
        refused(job[1])
        assert said(job[0], "size") == 1
        (tmp_path / "over").touch()
        assert job[0].process.wait(LIMIT) == 0
        assert "only 1 of 2 ranks are left (ranks [1]), fewer than 2" in lines(job[1])[-1]["text"]


def test_half_of_the_ranks_goes_on_without_dead_ones() -> None:
    with ranks.started(SCRIPT, 2, args=["rounds", "0"]) as job:
        assert results(job, {0})[1][-1] == {"done": [1]}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_of_two_the_one_with_rank_0_goes_on_without_one_that_is_stopped(
    transport: str, tmp_path: Path
) -> None:
    env = {"SLIPSTREAM_HEARTBEAT": "2"}
    with ranks.started(SCRIPT, 2, transport=transport, args=["apart", str(tmp_path), "1"], env=env) as job:
        assert said(job[0], "former") == [0]
        os.kill(job[1].process.pid, signal.SIGCONT)
        refused(job[1])
        (tmp_path / "over").touch()
        assert job[0].process.wait(LIMIT) == 0


def test_of_two_the_one_without_rank_0_does_not(tmp_path: Path) -> None:
    env = {"SLIPSTREAM_HEARTBEAT": "2"}
    with ranks.started(SCRIPT, 2, transport="tcp", args=["apart", str(tmp_path), "0"], env=env) as job:
        refused(job[1])


@pytest.mark.slow
@needs_lab
def test_a_network_that_falls_into_halves_makes_no_second_job(tmp_path: Path) -> None:
    from slipstream.lab import Lab

    with Lab(2) as lab:
        inside = {host: lab._inside(host, [], {}) for host in lab.hosts}
        with ranks.started(
            SCRIPT,
            4,
            transport="auto",
            args=["apart", str(tmp_path), "-1"],
            env={**lab.environment(), "SLIPSTREAM_HEARTBEAT": "2"},
            prefix={rank: inside[lab.hosts[rank // 2]] for rank in range(4)},
            store_process=[*inside["h1"], sys.executable, str(STORE), lab.address("h1")],
        ) as job:
            for rank in job:
                said(rank, "ready")
            lab.cut("h2")
            for rank in job[2:]:
                refused(rank)
            for rank in job[:2]:
                assert said(rank, "former") == [0, 1]
            (tmp_path / "over").touch()
            for rank in job[:2]:
                assert rank.process.wait(LIMIT) == 0
