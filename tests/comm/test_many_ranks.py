"""Hosts of more than 8 ranks, which leave marks for each other: right values, and errors on all when one fails."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from comm import ranks

HERE = Path(__file__).parent
LIMIT = 60.0  # seconds, beyond the heartbeat: two cores run 33 ranks


@pytest.mark.parametrize("size", [9, pytest.param(33, marks=pytest.mark.slow)])
def test_values(size: int) -> None:
    ranks.run(HERE / "many_ranks_rank.py", size)


@pytest.mark.slow
@pytest.mark.parametrize("nbytes", [4, 1 << 20])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_of_33_ranks_is_lost_in_an_operation(how: signal.Signals, nbytes: int) -> None:
    victim, heartbeat = 17, 5
    env = {"SLIPSTREAM_HEARTBEAT": str(heartbeat)}
    with ranks.started(HERE / "failure_rank.py", 33, args=["loop", str(nbytes)], env=env) as job:
        _wait_until_running(job)
        job[victim].process.send_signal(how)
        since = time.monotonic()
        for rank in job:
            if rank.number != victim:
                _check(rank, victim, since + heartbeat + LIMIT)


def _wait_until_running(job: list[ranks.Rank]) -> None:
    deadline = time.monotonic() + 120
    while not all("running" in rank.text() for rank in job):
        assert time.monotonic() < deadline, [rank.text() for rank in job]
        time.sleep(0.05)  # a poll of files that other processes write


def _check(rank: ranks.Rank, victim: int, deadline: float) -> None:
    """The rank ends by the deadline, and says whom it has lost in which operation."""
    try:
        rank.process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise AssertionError(f"rank {rank.number} hangs:\n{rank.text()}") from None
    assert rank.process.returncode == 0, rank.text()
    error = json.loads("{" + ranks.marked("{", rank.text()))
    assert (error["error"], error["rank"]) == ("PeerLost", victim), error
    assert re.search(r"rank 17 .*; rank \d+ (still waits in|has called) all_reduce\(", error["text"]), error
