"""What waits for what in a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_small_operations_wait_for_no_bulk(transport: str) -> None:
    ranks.run(Path(__file__).with_name("order_rank.py"), 3, transport=transport)
