"""Receives from whichever rank sends first."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("any_source_rank.py")


@pytest.mark.parametrize(("transport", "n"), [("tcp", 2), ("shm", 3), ("mixed", 4)])
def test_every_message_comes_once_and_in_order(transport: str, n: int) -> None:
    for text in ranks.run(SCRIPT, n, transport=transport, args=["check"]):
        assert "passed" in text


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_killed_candidate_is_named_at_once(transport: str) -> None:
    with ranks.started(SCRIPT, 3, transport=transport, args=["killed"]) as job:
        deadline = time.monotonic() + 60
        while not all("running" in rank.text() for rank in job):
            assert time.monotonic() < deadline, [rank.text() for rank in job]
            time.sleep(0.01)  # a poll of files that other processes write
        time.sleep(0.3)  # the receives wait; nothing tells when
        job[2].process.send_signal(signal.SIGKILL)
        since = time.monotonic()
        for rank in job[:2]:
            rank.process.wait(20)
            assert "lost 2: rank 2" in rank.text()
        assert time.monotonic() - since < 11  # its silence would tell after 12 s


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_candidates_that_died_before_there_was_a_link_are_named(transport: str, tmp_path: Path) -> None:
    both_dead = tmp_path / "dead"
    with ranks.started(SCRIPT, 3, transport=transport, args=["dead", str(both_dead)]) as job:
        for rank in job[1:]:
            rank.process.wait(60)
        both_dead.touch()
        job[0].process.wait(30)  # sooner than the operation's time-out
        assert "lost 1: rank 1" in job[0].text() or "lost 2: rank 2" in job[0].text(), job[0].text()


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_messages_of_ranks_that_left_still_come(transport: str) -> None:
    text = ranks.run(SCRIPT, 3, transport=transport, args=["left"], timeout=30)[0]
    assert "lost: rank" in text


def test_a_receive_that_nobody_serves_times_out() -> None:
    texts = ranks.run(SCRIPT, 3, args=["timeout"], timeout=30)
    for text in texts:
        assert " s in recv(from any rank, tag=3, float32, 10 elements) for any of rank 1" in text
        assert "expired: rank 0 has waited " in text
        assert " Timed out on rank 0 " in text


@pytest.mark.parametrize("count", [10, 100_000])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_message_of_another_size_is_a_mismatch(transport: str, count: int) -> None:
    for text in ranks.run(SCRIPT, 3, transport=transport, args=["mismatch", str(count)], timeout=30):
        assert "differs: " in text
        assert f"{count} elements" in text
        assert f"{count + 1} elements" in text
        assert "rank 1" in text
