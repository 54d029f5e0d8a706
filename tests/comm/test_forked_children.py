"""Children that a rank forks get nothing of its session: its end is seen at once, though they live on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("forked_rank.py")
QUICK = 5  # seconds; a leave that waits for the end of a connection which a child holds took 10
NEVER = {"SLIPSTREAM_HEARTBEAT": "1000"}  # seconds: no test waits for it


def told(rank: ranks.Rank, job: list[ranks.Rank]) -> dict[str, Any]:
    """What a rank says in its line of JSON."""
    ranks.wait_until(
        f"rank {rank.number}", lambda: "}\n" in rank.text() or rank.process.poll() is not None, job
    )
    lines = [line for line in rank.text().splitlines() if line.startswith("{")]
    assert len(lines) == 1, rank.text()
    found: dict[str, Any] = json.loads(lines[0])
    return found


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_a_child_has_nothing_of_the_session_and_hides_no_death(transport: str, tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, transport=transport, args=["killed", str(tmp_path)], env=NEVER) as job:
        try:
            ranks.wait_until("ranks", lambda: all((tmp_path / f"running{r}").exists() for r in range(2)), job)
            job[1].process.kill()
            lost = told(job[0], job)
        finally:
            (tmp_path / "done").touch()
        assert lost["rank"] == 1
        for rank in job:
            child = json.loads((tmp_path / f"child{rank.process.pid}").read_text())
            assert child["session"] >= 4, child
            assert child["inherited"] == [], child
            assert child["mapped"] == "slipstream-region ", child  # what the program made, and may read
            assert child["read"] == 100_000, child
            assert "not initialized" in child["refused"], child
            assert "is no rank itself" in child["group"], child


@pytest.mark.parametrize("way", ["file", "port"])
def test_a_child_has_nothing_of_the_store_that_rank_0_serves(way: str, tmp_path: Path) -> None:
    meet = ranks.meeting_place(way, tmp_path)
    with ranks.started(SCRIPT, 2, args=["left", str(tmp_path)], meet=meet) as job:
        try:
            told(job[1], job)
        finally:
            (tmp_path / "done").touch()
        child = json.loads((tmp_path / f"child{job[0].process.pid}").read_text())
        assert child["inherited"] == [], child
        for rank in job:
            assert rank.process.wait(60) == 0, rank.text()


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_a_child_does_not_hide_that_its_parent_has_left(transport: str, tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, transport=transport, args=["left", str(tmp_path)], env=NEVER) as job:
        try:
            lost = told(job[1], job)
        finally:
            (tmp_path / "done").touch()
        assert lost["rank"] == 0
        assert "left the job" in lost["text"], lost
        for rank in job:
            rank.process.wait(60)
            assert rank.process.returncode == 0, rank.text()


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_a_child_does_not_make_its_parents_leave_long(transport: str, tmp_path: Path) -> None:
    with ranks.started(SCRIPT, 2, transport=transport, args=["leaves", str(tmp_path)], env=NEVER) as job:
        try:
            seconds = [told(rank, job)["seconds"] for rank in job]
        finally:
            (tmp_path / "done").touch()
        for rank in job:
            assert rank.process.wait(60) == 0, rank.text()
        assert max(seconds) < QUICK, seconds


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_workers_of_a_data_loader_hide_no_death(transport: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with ranks.started(SCRIPT, 2, transport=transport, args=["loads", str(tmp_path)], env=NEVER) as job:
        try:
            ranks.wait_until("ranks", lambda: all((tmp_path / f"running{r}").exists() for r in range(2)), job)
            job[1].process.kill()
            assert told(job[0], job)["rank"] == 1
        finally:
            (tmp_path / "done").touch()
        job[0].process.wait(60)
        assert job[0].process.returncode == 0, job[0].text()
