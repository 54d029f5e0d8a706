"""Many works, many threads, large operations, little memory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("extremes_rank.py")
HIDE = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"', "sh"]


def passed(texts: list[str]) -> None:
    assert all("passed" in text for text in texts), texts


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_100000_works_in_flight(transport: str) -> None:
    passed(ranks.run(SCRIPT, 2, transport=transport, args=["outstanding"]))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_16_groups_in_16_threads(transport: str) -> None:
    passed(ranks.run(SCRIPT, 4, transport=transport, args=["groups_and_threads"]))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_16_groups_with_16_threads_each(transport: str) -> None:
    passed(ranks.run(SCRIPT, 4, transport=transport, args=["groups_of_many_threads"]))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 20 << 30, reason="needs 20 GiB of memory"
)
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_operations_on_5_gib(transport: str) -> None:
    passed(ranks.run(SCRIPT, 2, transport=transport, args=["large"], timeout=800))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_rank_with_a_limit_of_memory(transport: str) -> None:
    texts = ranks.run(SCRIPT, 2, transport=transport, args=["little_memory"])
    passed(texts)
    assert "refused: " in texts[1]


def test_a_small_dev_shm_is_enough() -> None:
    if os.geteuid() != 0 or subprocess.run([*HIDE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root, and mount namespaces")
    with ranks.started(SCRIPT, 2, args=["little_shared_memory"], prefix={0: HIDE, 1: HIDE}) as job:
        for rank in job:
            assert rank.process.wait(60) == 0, rank.text()
            assert "passed" in rank.text()
