"""Sums that travel in fewer bits between hosts; each rank is a host of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("wire_rank.py")


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("wire", ["exact", "bf16", "f16", "f8", "int8"])
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


def test_ranks_that_differ_in_what_they_gather_do_not_start(tmp_path: Path) -> None:
    args = ["bf16", str(tmp_path / "store")]
    env = {"SLIPSTREAM_WIRE": "bf16"}
    envs = {1: {"SLIPSTREAM_WIRE_GATHER": "1"}}
    with ranks.started(SCRIPT, 2, transport="tcp", args=args, env=env, envs=envs) as started:
        for rank in started:
            assert rank.process.wait(timeout=60) == 1
            assert (
                "SLIPSTREAM_WIRE_GATHER differs between ranks: rank 0 has False, rank 1 has True"
                in rank.text()
            )


@pytest.mark.parametrize("n", [2, 3])
def test_what_is_gathered_or_exchanged_travels_so_where_that_is_asked_for(n: int, tmp_path: Path) -> None:
    args = ["bf16", str(tmp_path / "store")]
    env = {"SLIPSTREAM_WIRE": "bf16", "SLIPSTREAM_WIRE_GATHER": "1"}
    ranks.run(SCRIPT, n, transport="tcp", args=args, env=env, timeout=120)


OTHER_SIDE = {
    "elements": "19969 elements",
    "op": "op=avg",
    "f16": "all_reduce(float16,",
    "bf16": "all_reduce(bfloat16,",
    "small": "all_reduce(float32, 10000 elements, op=sum)",
}


@pytest.mark.parametrize("case", OTHER_SIDE)
@pytest.mark.parametrize("wire", ["bf16", "f8"])
def test_ranks_that_disagree_read_what_each_has_called(wire: str, case: str, tmp_path: Path) -> None:
    script = SCRIPT.with_name("wire_mismatch_rank.py")
    args = [case, str(tmp_path / "store")]
    for text in ranks.run(script, 2, transport="tcp", args=args, env={"SLIPSTREAM_WIRE": wire}, timeout=60):
        assert (
            f"all_reduce(float32, 20{'030' if case == 'elements' else '000'} elements, op=sum, wire={wire})"
            in text
        )
        assert OTHER_SIDE[case] in text
