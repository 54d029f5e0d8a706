"""What compressions compute, without ranks: which way gradients take, how buckets are cut, and the arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.base.dtypes import DType, Op
from slipstream.gradients import buckets
from slipstream.gradients.buckets import Parameter, cut
from slipstream.gradients.compression import EXACT, FP16, PowerSGD, TopK, Way
from slipstream.gradients.policy import Policy
from slipstream.gradients.power_sgd import orthonormal, product
from slipstream.gradients.reductions import Terms, check_sums
from slipstream.gradients.states import RESIDUAL, States, check_state
from slipstream.gradients.top_k import largest

TOP = TopK(0.1)
SUM, MAX = int(Op.SUM), int(Op.MAX)


def parameter(*shape: int, dtype: DType = DType.F32, index: int = 0, way: Way = EXACT) -> Parameter:
    count = int(np.prod(shape))
    return Parameter(index, count, dtype, f"p{index}", shape, way)


MATRIX, BIAS, SMALL = parameter(256, 256), parameter(1 << 20), parameter(4, 4)


@pytest.mark.parametrize("way", [TOP, PowerSGD(2)])
def test_biases_norms_and_what_is_small_stay_exact(way: Way) -> None:
    assert [Policy(way).way_of(one) for one in (MATRIX, BIAS, SMALL)] == [way, EXACT, EXACT]
    assert Policy(way, lambda one: one is MATRIX).way_of(MATRIX) == EXACT
    assert Policy(way).way_of(parameter(256, 256, dtype=DType.I32)) == EXACT


def test_a_cast_leaves_none_out() -> None:
    assert [Policy(FP16).way_of(one) for one in (MATRIX, BIAS, SMALL)] == [FP16] * 3


def test_powersgd_takes_what_it_makes_smaller() -> None:
    assert PowerSGD(4).takes(DType.F32, (64, 32, 3, 3))
    assert not PowerSGD(4).takes(DType.F32, (1 << 20,))
    assert not PowerSGD(4).takes(DType.F32, (16, 16))  # 128 numbers of factors for 256
    assert not PowerSGD(4).takes(DType.F32, (0, 5))


@pytest.mark.parametrize("make", [lambda: TopK(0.0), lambda: TopK(1.5), lambda: PowerSGD(0)])
def test_what_no_compression_can_be(make: Any) -> None:
    with pytest.raises(ValueError, match="take"):
        make()


def test_what_adds_up_takes_no_maximum() -> None:
    check_sums(TOP, int(Op.AVG))
    with pytest.raises(ValueError, match="top-k of 10 % compresses sums"):
        check_sums(TOP, MAX)


def test_buckets_are_divided_by_way_and_keep_the_order_in_which_they_become_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buckets, "FIRST_BUCKET_BYTES", 256)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 512)
    ready = [
        parameter(64, index=i, way=EXACT if i % 2 else TOP) for i in range(10)
    ]  # weights and biases in turns
    found = [[one.index for one in bucket] for bucket in cut(ready)]
    # the first is small; each ends later than the one before it
    assert found == [[0], [1, 3], [2, 4], [5, 7], [6, 8], [9]]
    found = [[one.index for one in bucket] for bucket in cut(ready, [[0, 1, 2, 9]])]
    assert found == [[0, 2], [3, 5], [4, 6], [7], [8], [1, 9]]


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
    saved = states.state_dict()
    states.forget()
    assert not memory.any()
    states.load_state_dict(saved)
    assert memory.tolist() == [1, 2, 3]
    assert states.of(one)[RESIDUAL] is memory
    later = States()  # of a job that has not made its buckets
    later.load_state_dict(saved)
    fresh = np.empty(3, np.float32)
    later.keep_residual(one, fresh)
    assert fresh.tolist() == [1, 2, 3]
    for wrong, words in (
        ({"q": {}}, "'q', which there is not"),
        ({"p0": {RESIDUAL: np.zeros(4, np.float32)}}, "4 numbers"),
        ({"p0": {"momentum": np.zeros(3, np.float32)}}, "momentum"),
    ):
        with pytest.raises(ValueError, match=words):
            check_state(wrong, [one])


def test_terms_say_what_becomes_of_a_sum() -> None:
    assert Terms(int(Op.AVG), 0.5, 3.0).factor(4) == 0.375
    assert Terms(SUM, 0.5, 3.0).factor(4) == 1.5
