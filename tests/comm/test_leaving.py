"""Ranks that leave at once after their last operation: what they have sent arrives, and nobody waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("leaves_rank.py")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_has_no_room_yet_is_not_lost(transport: str, tmp_path: Path) -> None:
    ranks.run(SCRIPT, 2, transport=transport, args=["behind", str(tmp_path)])


def test_a_rank_that_is_stopped_is_not_waited_for_beyond_a_heartbeat() -> None:
    with ranks.started(SCRIPT, 2, args=["stopped", "-"], env={"SLIPSTREAM_HEARTBEAT": "2"}) as (leaving, _):
        assert leaving.process.wait(timeout=30) == 0, leaving.text()


@pytest.mark.parametrize("attempt", range(3))  # half of these failed before
def test_nobody_waits_to_send_nothing_to_a_rank_that_has_left(attempt: int) -> None:
    ranks.run(SCRIPT, 13, args=["uneven", "-"], timeout=120)
