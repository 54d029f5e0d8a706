"""Sums that travel in fewer bits between hosts; each rank is a host of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from comm import ranks
from slipstream.base.dtypes import DType, Op
from slipstream.faces.torch_distributed.wire import Wire

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


@pytest.mark.parametrize("code", [DType.BF16, DType.F16, DType.Q8])
def test_a_result_may_be_decoded_again_while_other_tensors_travel(code: DType) -> None:
    """A signal's handler may break the first time off."""
    wire = Wire(code, 2)
    one, two = torch.ones(40_000), torch.full((40_000,), 2.0)
    first = wire.encode(one, one, Op.AVG, None)
    first.decode()
    second = wire.encode(two, two, Op.AVG, None)
    first.decode()
    second.decode()
    factor = 0.5 if code == DType.F16 else 1.0  # it divides before it is sent
    assert torch.allclose(one, torch.full_like(one, factor), rtol=0.01)
    assert torch.allclose(two, torch.full_like(two, 2 * factor), rtol=0.01)


OTHER_SIDE = {
    "elements": "cast from float32, 19969 elements",
    "op": "op=avg",
    "f16": "all_reduce(float16,",
    "bf16": "all_reduce(bfloat16,",
    "small": "all_reduce(float32, 10000 elements",
}


@pytest.mark.parametrize("case", OTHER_SIDE)
@pytest.mark.parametrize("wire", ["bf16", "f16", "int8"])
def test_ranks_that_disagree_read_what_each_has_called(wire: str, case: str, tmp_path: Path) -> None:
    script = SCRIPT.with_name("wire_mismatch_rank.py")
    args = [case, str(tmp_path / "store")]
    for text in ranks.run(script, 2, transport="tcp", args=args, env={"SLIPSTREAM_WIRE": wire}, timeout=60):
        assert "cast from float32, 20" in text
        assert OTHER_SIDE[case] in text
