"""The first calls of a process come from several threads at once: none waits for another one with Python's lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks


@pytest.mark.parametrize("n", [1, 2])
def test_first_calls_from_several_threads(n: int) -> None:
    for _ in range(4):
        ranks.run(Path(__file__).with_name("first_calls_rank.py"), n, transport="shm", timeout=60)
