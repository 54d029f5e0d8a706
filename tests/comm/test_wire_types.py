"""float32 data in fewer bits between hosts: each rank is a host of its own, or even and odd ranks are two hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("wire_types_rank.py")


@pytest.mark.parametrize(("transport", "n"), [("tcp", 2), ("tcp", 3), ("mixed", 4)])
@pytest.mark.parametrize("wire", ["bf16", "f16", "f8", "int8"])
def test_every_rank_has_the_same_bits_and_few_errors(wire: str, transport: str, n: int) -> None:
    ranks.run(SCRIPT, n, transport=transport, args=[wire], timeout=120)


def test_ranks_that_differ_are_told() -> None:
    script = SCRIPT.with_name("wire_types_mismatch_rank.py")
    for text in ranks.run(script, 2, transport="tcp", timeout=60):
        assert "wire=int8" in text
