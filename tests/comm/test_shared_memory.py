"""Ranks of one host: what they share stays true when one of them is stopped, woken or killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from comm import ranks

SCRIPT = Path(__file__).with_name("shared_memory_rank.py")


def state(rank: ranks.Rank) -> str:
    """The state of a process, as in /proc/PID/stat: "T" is stopped."""
    return Path(f"/proc/{rank.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def stop(rank: ranks.Rank, job: list[ranks.Rank]) -> None:
    rank.process.send_signal(signal.SIGSTOP)
    ranks.wait_until("a stopped process", lambda: state(rank) == "T", job)


def knocks_at(job: list[ranks.Rank], folder: Path) -> bool:
    """Whether rank 1 has a connection to the unix socket of rank 0 that nobody has accepted."""
    files = [os.readlink(f) for f in Path(f"/proc/{job[1].process.pid}/fd").iterdir() if f.is_symlink()]
    return (folder / "called").exists() and sum(f.startswith("socket:") for f in files) >= 2


def reports(rank: ranks.Rank) -> list[dict[str, Any]]:
    rank.process.wait(60)
    assert rank.process.returncode == 0, rank.text()
    return [json.loads(line) for line in rank.text().splitlines() if line.startswith("{")]


def test_a_stopped_rank_that_is_killed_while_a_peer_knocks_is_named(tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, args=["knock", str(tmp_path)]) as job:
        ranks.wait_until("rank 0", (tmp_path / "ready").exists, job)
        stop(job[0], job)
        (tmp_path / "stopped").touch()
        ranks.wait_until("a knock", lambda: knocks_at(job, tmp_path), job)
        job[0].process.kill()
        (error,) = reports(job[1])
    assert (error["error"], error["rank"]) == ("PeerLost", 0), error
    assert "is gone: it finished, died or was killed: nothing listens there any more" in error["text"]


def test_a_rank_that_wakes_up_does_not_write_to_memory_of_a_survivor(tmp_path: Path) -> None:
    env = {"SLIPSTREAM_HEARTBEAT": "1"}
    with ranks.started(SCRIPT, 2, args=["write", str(tmp_path)], env=env) as job:
        ranks.wait_until(
            "broadcasts", lambda: all((tmp_path / f"running{r}").exists() for r in range(2)), job
        )
        stop(job[1], job)
        ranks.wait_until("the survivor", (tmp_path / "reused").exists, job)
        job[1].process.send_signal(signal.SIGCONT)
        lost, survivor = reports(job[0])
        (woken,) = reports(job[1])
    assert (lost["error"], lost["rank"]) == ("PeerLost", 1), lost
    assert survivor == {"changed": 0}
    assert "error" in woken


def test_a_rank_that_wakes_up_does_not_take_what_a_survivor_has_overwritten(tmp_path: Path) -> None:
    env = {"SLIPSTREAM_HEARTBEAT": "1"}
    with ranks.started(SCRIPT, 2, args=["read", str(tmp_path)], env=env) as job:
        ranks.wait_until(
            "broadcasts", lambda: all((tmp_path / f"running{r}").exists() for r in range(2)), job
        )
        stop(job[1], job)
        ranks.wait_until("the survivor", (tmp_path / "reused").exists, job)
        job[1].process.send_signal(signal.SIGCONT)
        (woken,) = reports(job[1])
        (tmp_path / "done").touch()
        (lost,) = reports(job[0])
    assert (lost["error"], lost["rank"]) == ("PeerLost", 1), lost
    assert "error" in woken, woken


def test_ranks_that_differ_in_transport_are_told_so(tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, args=["transports", str(tmp_path)]) as job:
        for rank in job:
            (error,) = reports(rank)
            assert error["error"] == "Mismatch"
            assert (
                "SLIPSTREAM_TRANSPORT differs between ranks: rank 1 has tcp, rank 0 has auto" in error["text"]
            )


def test_ranks_that_differ_in_scale_are_told_so(tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, args=["prescales", str(tmp_path)]) as job:
        for rank in job:
            (error,) = reports(rank)
            assert error["error"] == "Mismatch"
            assert "prescale=0.5" in error["text"]
            assert "prescale=1.5" in error["text"]


def test_a_rank_without_a_thread_for_its_engine_says_so(tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, args=["no_thread", str(tmp_path)]) as job:
        (error,) = reports(job[1])
        assert "cannot start the engine's thread: Resource temporarily unavailable" in error["text"]
        (lost,) = reports(job[0])
        assert (lost["error"], lost["rank"]) == ("PeerLost", 1), lost
