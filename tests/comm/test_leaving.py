"""Ranks that leave at once after their last operation: what they have sent arrives, and nobody waits for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("leaves_rank.py")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_has_no_room_yet_is_not_lost(transport: str, tmp_path: Path) -> None:
    ranks.run(SCRIPT, 2, transport=transport, args=["behind", str(tmp_path)])


def test_a_rank_that_is_stopped_is_not_waited_for_beyond_a_heartbeat() -> None:
    """When it goes on, it learns that the other one has not only left."""
    with ranks.started(SCRIPT, 2, args=["stopped", "-"], env={"SLIPSTREAM_HEARTBEAT": "2"}) as (
        leaving,
        other,
    ):
        assert leaving.process.wait(timeout=30) == 0, leaving.text()
        os.kill(other.process.pid, signal.SIGCONT)
        assert other.process.wait(timeout=30) != 0
        assert "some of what it had sent is lost: rank 1 did not take it for 2 s" in other.text()


@pytest.mark.parametrize("count", [61, 62, 63, 64])
def test_a_rank_that_leaves_tells_what_it_called_last(count: int, tmp_path: Path) -> None:
    """Whether or not a ring of shared memory is full by then."""
    with ranks.started(SCRIPT, 2, args=["latest", str(tmp_path), str(count)]) as (leaving, other):
        ranks.wait_until("messages", (tmp_path / "sent").exists, [leaving, other])
        with contextlib.suppress(subprocess.TimeoutExpired):  # it leaves, or waits for room: either is right
            leaving.process.wait(timeout=0.3)
        os.kill(other.process.pid, signal.SIGCONT)
        assert leaving.process.wait(timeout=30) == 0, leaving.text()
        assert other.process.wait(timeout=30) != 0
        assert "called send(to rank 1, uint8, 4000 elements)" in other.text()


@pytest.mark.parametrize("attempt", range(3))  # half of these failed before
def test_nobody_waits_to_send_nothing_to_a_rank_that_has_left(attempt: int) -> None:
    ranks.run(SCRIPT, 13, args=["uneven", "-"], timeout=120)
