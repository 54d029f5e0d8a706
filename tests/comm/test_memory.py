"""What a rank keeps for ever of tags and groups that were used once."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

RANK = Path(__file__).with_name("memory_rank.py")
FIRST, COUNT = 3000, 7_000  # the first ones fill what is kept of the latest alone
MOST = 400  # bytes; the allocator alone may take 100 more from one run to the next


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("mode", ["tags", "groups"])
def test_what_was_used_once_leaves_few_bytes(mode: str, transport: str) -> None:
    texts = ranks.run(RANK, 2, transport=transport, args=[mode, str(FIRST), str(COUNT)])
    assert all(int(text) < MOST for text in texts), texts
