"""Daemon threads that are in the middle of collectives when their processes end."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("daemon_rank.py")


def check(size: int, transport: str) -> None:
    """Every rank ends with exit code 0, and says nothing of operations that have ended with it."""
    for text in ranks.run(SCRIPT, size, transport=transport):
        assert text.startswith("done\n")
        assert "Aborted" not in text


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_daemon_threads_in_collectives_do_not_fail_a_job_that_went_well(transport: str, size: int) -> None:
    check(size, transport)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_nor_in_ten_jobs(transport: str, size: int) -> None:
    for _ in range(10):
        check(size, transport)
