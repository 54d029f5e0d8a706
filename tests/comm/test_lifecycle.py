"""Joining, leaving and everything between: nothing leaks, nothing runs that need not, mistakes harm nobody."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("lifecycle_rank.py")


@pytest.mark.parametrize(("transport", "autotune"), [("tcp", "off"), ("tcp", "on"), ("shm", "off")])
def test_200_times_init_and_shutdown_leave_nothing(transport: str, autotune: str) -> None:
    env = {"SLIPSTREAM_AUTOTUNE": autotune, "SLIPSTREAM_TUNING_CACHE": "off"}
    ranks.run(SCRIPT, 2, transport=transport, args=["again"], env=env)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_nobody_listens_after_shutdown(transport: str) -> None:
    ranks.run(SCRIPT, 2, transport=transport, args=["held"])


def test_a_single_process_needs_no_job_and_leaves_nothing() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
    result = subprocess.run(
        [ranks.PYTHON, str(SCRIPT), "again"], env=environment, capture_output=True, text=True, timeout=250
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_ring_opens_two_links_a_rank(transport: str) -> None:
    ranks.run(SCRIPT, 6, transport=transport, args=["ring"])


@pytest.mark.alone
@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_an_idle_engine_takes_no_processor_time(transport: str) -> None:
    ranks.run(SCRIPT, 3, transport=transport, args=["idle"])


@pytest.mark.alone
def test_a_shutdown_beside_a_peer_that_does_not_read_sleeps() -> None:
    ranks.run(SCRIPT, 2, transport="tcp", args=["unread"])


@pytest.mark.parametrize("transport", ranks.TRANSPORTS)
def test_works_may_be_dropped(transport: str) -> None:
    ranks.run(SCRIPT, 3, transport=transport, args=["dropped"])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_wait_that_is_too_short(transport: str) -> None:
    ranks.run(SCRIPT, 2, transport=transport, args=["too_early"])


def test_an_operation_whose_wait_ended_early_goes_on_while_done_is_asked() -> None:
    ranks.run(SCRIPT, 2, transport="shm", args=["asked_alone"])


@pytest.mark.parametrize("n", [2, 3])
def test_wrong_arguments_harm_nobody(n: int) -> None:
    ranks.run(SCRIPT, n, args=["wrong_arguments"])


def test_freed_memory_is_unmapped_on_all_ranks() -> None:
    ranks.run(SCRIPT, 3, args=["freed"])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_forked_child_neither_takes_part_nor_harms(transport: str) -> None:
    for text in ranks.run(Path(__file__).with_name("fork_rank.py"), 2, transport=transport):
        assert "in the child: slipstream is not initialized" in text
