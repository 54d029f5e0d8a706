"""What compressions compute, without ranks: which way gradients take, how buckets are cut, and the arithmetic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slipstream.base.dtypes import DType, Op
from slipstream.gradients import buckets
from slipstream.gradients.buckets import Parameter, cut
from slipstream.gradients.compression import BF16, EXACT, FP16, PowerSGD, TopK, Way, Wire
from slipstream.gradients.policy import Policy
from slipstream.gradients.power_sgd import orthonormal, product
from slipstream.gradients.reductions import Terms, check_sums
from slipstream.gradients.states import RESIDUAL, States, check_kind, check_state, saved_of
from slipstream.gradients.top_k import largest
from slipstream.gradients.wires import check_unscaled

INT8 = Wire("int8")
SUM, MAX = int(Op.SUM), int(Op.MAX)


def group(*hosts: int, wire: str = "exact") -> Any:
    """What a policy looks at of a group."""
    settings = SimpleNamespace(wire=wire)
    return SimpleNamespace(spans_hosts=len(set(hosts)) > 1, job=SimpleNamespace(settings=settings))


def parameter(*shape: int, dtype: DType = DType.F32, index: int = 0, way: Way = EXACT) -> Parameter:
    count = int(np.prod(shape))
    return Parameter(index, count, dtype, f"p{index}", shape, way)


MATRIX, BIAS, SMALL = parameter(256, 256), parameter(1 << 20), parameter(4, 4)
TWO_HOSTS = group(0, 1)


@pytest.mark.parametrize("way", [INT8, Wire("bf16"), Wire("f8", True), TopK(0.1), PowerSGD(2)])
def test_biases_norms_and_what_is_small_stay_exact(way: Way) -> None:
    policy = Policy(way)
    ways = [policy.way_of(one, TWO_HOSTS, SUM) for one in (MATRIX, BIAS, SMALL)]
    assert ways == [way, EXACT, EXACT]
    assert Policy(way, lambda one: one is MATRIX).way_of(MATRIX, TWO_HOSTS, SUM) == EXACT


def test_a_wire_acts_between_hosts_and_on_sums() -> None:
    for way in (INT8, None):
        assert Policy(way).way_of(MATRIX, group(0, 1, wire="int8"), SUM) == INT8
        assert Policy(way).way_of(MATRIX, group(0, 0, wire="int8"), SUM) == EXACT
        assert Policy(way).way_of(MATRIX, group(0, 1, wire="int8"), MAX) == EXACT
    assert Policy(EXACT).way_of(MATRIX, group(0, 1, wire="int8"), SUM) == EXACT
    assert Policy(TopK(0.1)).way_of(MATRIX, group(0, 0), SUM) == TopK(0.1)


def test_the_wire_of_the_job_takes_float32_alone() -> None:
    half = parameter(256, 256, dtype=DType.BF16)
    assert Policy().way_of(half, group(0, 1, wire="int8"), SUM) == EXACT
    assert Policy(INT8).way_of(half, TWO_HOSTS, SUM) == INT8
    assert Policy(Wire("f16")).way_of(half, TWO_HOSTS, SUM) == EXACT
    assert Policy(INT8).way_of(parameter(256, 256, dtype=DType.I32), TWO_HOSTS, SUM) == EXACT


def test_a_cast_gives_way_to_the_wire_of_its_type() -> None:
    for cast, wire in ((FP16, "f16"), (BF16, "bf16")):
        assert Policy(cast).way_of(MATRIX, TWO_HOSTS, SUM) == Wire(wire)
        assert Policy(cast).way_of(MATRIX, group(0, 0), SUM) == EXACT
        assert Policy(cast).way_of(BIAS, TWO_HOSTS, SUM) == EXACT
        assert Policy(cast).way_of(MATRIX, TWO_HOSTS, MAX) == cast
        assert Policy(cast).way_of(parameter(9, dtype=DType.F64), TWO_HOSTS, SUM) == cast


def test_single_parameters_may_have_a_way_of_their_own() -> None:
    policy = Policy(INT8, own={1: EXACT, 2: Wire("bf16")})
    ways = [policy.way_of(parameter(256, 256, index=i), TWO_HOSTS, SUM) for i in range(3)]
    assert ways == [INT8, EXACT, Wire("bf16")]


def test_powersgd_takes_what_it_makes_smaller() -> None:
    assert PowerSGD(4).takes(DType.F32, (64, 32, 3, 3))
    assert not PowerSGD(4).takes(DType.F32, (1 << 20,))
    assert not PowerSGD(4).takes(DType.F32, (16, 16))  # 128 numbers of factors for 256
    assert not PowerSGD(4).takes(DType.F32, (0, 5))


@pytest.mark.parametrize(
    "make", [lambda: TopK(0.0), lambda: TopK(1.5), lambda: PowerSGD(0), lambda: Wire("f9")]
)
def test_what_no_compression_can_be(make: Any) -> None:
    with pytest.raises(ValueError, match="take"):
        make()


def test_what_adds_up_takes_no_maximum() -> None:
    check_sums(INT8, int(Op.AVG))
    with pytest.raises(ValueError, match="int8 between hosts compresses sums"):
        check_sums(INT8, MAX)


def test_error_feedback_rounds_the_numbers_that_the_engine_rounds() -> None:
    check_unscaled(Wire("int8", True), 1.0)
    check_unscaled(INT8, 0.5)
    with pytest.raises(ValueError, match="a factor before the sum"):
        check_unscaled(Wire("int8", True), 0.5)


def test_buckets_are_divided_by_way_and_keep_the_order_in_which_they_become_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buckets, "FIRST_BUCKET_BYTES", 256)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 512)
    ready = [
        parameter(64, index=i, way=EXACT if i % 2 else INT8) for i in range(10)
    ]  # weights and biases in turns
    found = [[one.index for one in bucket] for bucket in cut(ready)]
    # the first is small; each ends later than the one before it
    assert found == [[0], [1, 3], [2, 4], [5, 7], [6, 8], [9]]
    found = [[one.index for one in bucket] for bucket in cut(ready, [[0, 1, 2, 9]])]
    assert found == [[0, 2], [3, 5], [4, 6], [7], [8], [1, 9]]


@pytest.mark.parametrize(("sizes", "last"), [([1] * 40, 4), ([20, 3, 2], 2), ([20, 3, 1], 4), ([20, 5], 5)])
def test_the_last_bucket_is_small_as_nothing_hides_its_time(sizes: list[int], last: int) -> None:
    """Sizes in MiB, in the order in which gradients become ready. One gradient that is larger stays whole."""
    ready = [Parameter(i, size << 18, DType.F32) for i, size in enumerate(sizes)]
    found = cut(ready)
    assert [one.index for bucket in found for one in bucket] == list(range(len(sizes)))
    assert sum(one.nbytes for one in found[-1]) == last << 20


def test_the_largest_numbers_are_found() -> None:
    numbers = np.array([0.5, -3, 0, 2, np.nan, -1], np.float32)
    assert largest(numbers, 3).tolist() == [1, 3, 4]
    assert largest(numbers, 9).tolist() == list(range(6))
    assert largest(np.zeros(0, np.float32), 0).size == 0


@pytest.mark.parametrize(("rows", "rank"), [(7, 1), (50, 4), (4, 4)])
def test_columns_become_an_orthonormal_basis(rows: int, rank: int) -> None:
    columns = np.random.default_rng(rows).standard_normal((rows, rank)).astype(np.float32)
    basis = orthonormal(columns)
    assert np.allclose(basis.T @ basis, np.eye(rank), atol=1e-6)
    assert np.allclose(basis @ (basis.T @ columns), columns, atol=1e-5)


def test_columns_that_add_nothing_become_zeros_and_nan_stays() -> None:
    columns = np.array([[1, 2, 0], [1, 2, 0], [1, 2, 0]], np.float32)
    assert np.array_equal(orthonormal(columns)[:, 1:], np.zeros((3, 2)))
    columns[0, 0] = np.nan
    assert np.isnan(orthonormal(columns)).any()


@pytest.mark.parametrize("shape", [(3, 5), (300, 70), (2, 40_000), (1, 1)])
def test_products_are_those_of_numpy(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    p, q = (random.standard_normal((n, 3)).astype(np.float32) for n in shape)
    out = np.empty(shape, np.float32)
    product(p, q, out)
    assert np.allclose(out, p @ q.T, atol=1e-5)


def test_what_is_remembered_is_saved_and_taken_over() -> None:
    memory, one = np.zeros(3, np.float32), parameter(3)
    states = States()
    states.keep_residual(one, memory)
    memory[...] = [1, 2, 3]
    saved = states.copies()
    states.forget()
    assert not memory.any()
    states.take_over(saved)
    assert memory.tolist() == [1, 2, 3]
    assert states.of(one)[RESIDUAL] is memory
    later = States()  # of a job that has not made its buckets
    later.take_over(saved)
    fresh = np.empty(3, np.float32)
    later.keep_residual(one, fresh)
    assert fresh.tolist() == [1, 2, 3]
    for wrong, words in (
        ({"p0": {}, "q": {}}, "'q', which there is not"),
        ({"q": {}}, "lacks the parameter 'p0'"),
        ({"p0": {RESIDUAL: np.zeros(4, np.float32)}}, "4 numbers"),
        ({"p0": {"momentum": np.zeros(3, np.float32)}}, "momentum"),
    ):
        with pytest.raises(ValueError, match=words):
            check_state(wrong, [one])


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({}, "no saved state of a compression"),
        ({"x": 1}, "no saved state of a compression"),
        ({"compression": "top-k", "parameters": 1}, "has no parameters"),
        ({"compression": "PowerSGD", "parameters": {}}, "is of compression PowerSGD, .* here is top-k"),
    ],
)
def test_a_state_that_is_none_or_of_another_compression_is_refused(saved: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_kind(saved, TopK(0.1))
    check_kind({"compression": "top-k", "parameters": {}}, TopK(0.5))


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        (None, "none"),
        (INT8, "none"),
        (FP16, "none"),
        (Wire("f8", True), "f8 with error feedback"),
        (PowerSGD(2), "PowerSGD"),
    ],
)
def test_a_saved_state_says_what_remembered_it(way: Way | None, kind: str) -> None:
    assert saved_of(way, {})["compression"] == kind


def test_terms_say_what_becomes_of_a_sum() -> None:
    assert Terms(int(Op.AVG), 0.5, 3.0).factor(4) == 0.375
    assert Terms(SUM, 0.5, 3.0).factor(4) == 1.5
