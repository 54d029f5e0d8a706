"""The exchange of gradients without any of the frameworks, in a job that is not the process's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks
from slipstream.base.dtypes import DType
from slipstream.gradients import agreement
from slipstream.gradients.buckets import Parameter
from slipstream.gradients.compression import BF16, EXACT, FP16

SCRIPT = Path(__file__).with_name("exchange_rank.py")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_gradients_of_any_framework_are_averaged(transport: str) -> None:
    for text in ranks.run(SCRIPT, 3, transport=transport, args=["average"], timeout=60):
        assert text.strip() == "averaged", text


def test_different_parameters_are_named_on_all_ranks() -> None:
    for text in ranks.run(SCRIPT, 3, args=["differ"], timeout=60):
        assert "parameter 1 is p1 (3,) float64 on rank 0 and p1 (4,) float64 on rank 1" in text, text


@pytest.mark.parametrize("n", [2, 3])
def test_top_k_and_powersgd_do_what_one_process_computes(n: int) -> None:
    for text in ranks.run(SCRIPT.with_name("compression_rank.py"), n, args=["references"], timeout=120):
        assert text.strip() == "compressed", text


def test_different_compressions_are_named_on_all_ranks() -> None:
    for text in ranks.run(SCRIPT.with_name("compression_rank.py"), 3, args=["differ"], timeout=60):
        assert (
            "compression differs between ranks: top-k of 5 % on ranks 0, 2, PowerSGD of rank 3 on rank 1"
            in text
        )
        assert "Give compression=" in text, text


def test_different_wires_are_named_also_on_one_host() -> None:
    for text in ranks.run(SCRIPT.with_name("compression_rank.py"), 2, args=["wires differ"], timeout=60):
        assert "differs between ranks: int8 between hosts on rank 0, bf16 between hosts on rank 1" in text, (
            text
        )


def test_a_wire_that_a_program_asks_for_on_one_host_is_said_to_have_no_effect_once() -> None:
    first, second = ranks.run(SCRIPT.with_name("compression_rank.py"), 2, args=["no effect"], timeout=60)
    assert first.count("rank 0: the wire int8, which the program asks for, has no effect") == 1, first
    assert second == ""


def test_different_numbers_of_backward_passes_are_named_on_all_ranks() -> None:
    for text in ranks.run(SCRIPT, 3, args=["passes differ"], timeout=60):
        assert "backward_passes_per_step differs between ranks: 1 on ranks 0, 2, 2 on rank 1." in text, text


def test_a_gradient_that_is_exact_on_one_rank_alone_is_named() -> None:
    for text in ranks.run(SCRIPT.with_name("compression_rank.py"), 2, args=["exact differs"], timeout=60):
        assert "the compression of the gradient of p0 (80, 60) float32 differs between ranks: " in text, text
        assert "int8 between hosts (float32) on rank 0, exact (float32) on rank 1" in text, text


def test_parameters_that_one_rank_alone_compresses_are_named() -> None:
    for text in ranks.run(SCRIPT.with_name("compression_rank.py"), 2, args=["count differs"], timeout=60):
        assert "the ranks compress different parameters: parameter 2 is missing on rank 0 and p2" in text, (
            text
        )


@pytest.mark.parametrize(
    ("theirs", "names_alone"),
    [
        ("dense_1/kernel (2, 3) float32 (its change, op=Adasum)", True),
        ("dense/kernel (2, 4) float32 (its change, op=Adasum)", False),
    ],
)
def test_parameters_that_differ_in_names_alone_are_said_to(theirs: str, names_alone: bool) -> None:
    ours = "dense/kernel (2, 3) float32 (its change, op=Adasum)"
    text = str(agreement._of_parameters("optimise", [[ours], [theirs]], [0, 1]))
    assert f"parameter 0 is {ours} on rank 0 and {theirs} on rank 1" in text
    assert ("Only the names differ" in text) is names_alone


def test_a_cast_changes_floating_point_alone() -> None:
    assert [FP16.dtype(own) for own in (DType.F64, DType.F32, DType.I32, DType.C64)] == [
        DType.F16,
        DType.F16,
        DType.I32,
        DType.C64,
    ]
    assert BF16.dtype(DType.F16) is DType.BF16
    assert EXACT.dtype(DType.F32) is DType.F32


@pytest.mark.parametrize(("count", "nbytes"), [(0, 0), (1, 64), (16, 64), (17, 128)])
def test_a_parameter_ends_at_a_cache_line(count: int, nbytes: int) -> None:
    assert Parameter(0, count, DType.F32).nbytes == nbytes
