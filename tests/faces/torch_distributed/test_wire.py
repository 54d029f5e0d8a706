"""Sums that travel in fewer bits between hosts; each rank is a host of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("wire_rank.py")


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("wire", ["exact", "bf16", "f16", "int8"])
def test_values(wire: str, n: int, tmp_path: Path) -> None:
    args = [wire, str(tmp_path / "store")]
    ranks.run(SCRIPT, n, transport="tcp", args=args, env={"SLIPSTREAM_WIRE": wire}, timeout=120)


def test_ranks_that_differ_do_not_start(tmp_path: Path) -> None:
    args = ["bf16", str(tmp_path / "store")]
    envs = {1: {"SLIPSTREAM_WIRE": "bf16"}}
    with ranks.started(SCRIPT, 2, transport="tcp", args=args, envs=envs) as started:
        for rank in started:
            assert rank.process.wait(timeout=60) == 1
            assert "SLIPSTREAM_WIRE differs between ranks: rank 0 has exact, rank 1 has bf16" in rank.text()
