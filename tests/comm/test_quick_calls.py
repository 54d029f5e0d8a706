"""Collectives that are called again and again with arrays alike, which go to the engine without Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks


@pytest.mark.parametrize(("n", "transport"), [(1, "shm"), (2, "shm"), (3, "shm"), (3, "tcp")])
def test_values_and_what_is_refused(n: int, transport: str) -> None:
    ranks.run(Path(__file__).with_name("quick_calls_rank.py"), n, transport=transport)
