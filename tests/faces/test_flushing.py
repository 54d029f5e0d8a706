"""A rank whose framework flushes subnormal numbers to zero gets the bits of all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_rank_that_flushes_denormals_gets_the_same_bits(transport: str) -> None:
    pytest.importorskip("torch")
    ours, theirs = ranks.run(Path(__file__).with_name("flushing_rank.py"), 2, transport=transport)
    assert ours == theirs
