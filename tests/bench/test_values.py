"""What is put in, and what is expected to come out, against collectives that NumPy plays through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.bench.collective.catalogue import COLLECTIVES, DTYPES, OPS
from slipstream.bench.collective.values import (
    PERIOD,
    Values,
    expected_sections,
    fill,
    input_sections,
    numpy_dtype,
    wrong_elements,
)

RANKS = 3
COUNT = 70_000  # more than a period, and no multiple of it


def _inputs(name: str, values: Values, root: int, shift: int) -> list[np.ndarray[Any, Any]]:
    collective = COLLECTIVES[name]
    elements = COUNT * (RANKS if collective.parted else 1)
    length = COUNT if name in ("all_gather", "gather") else elements
    arrays = [np.full(length, 77, dtype=values.dtype) for _ in range(RANKS)]
    for rank, array in enumerate(arrays):
        fill(array, input_sections(name, rank, root, elements, COUNT), values, shift)
    return arrays


def _play(name: str, inputs: list[Any], rank: int, root: int) -> Any:
    """The collective in NumPy, of sums."""
    total = sum(one.astype(np.float64) for one in inputs).astype(inputs[0].dtype)
    mine = slice(rank * COUNT, (rank + 1) * COUNT)
    return {
        "all_reduce": lambda: total,
        "reduce": lambda: total,
        "reduce_scatter": lambda: total[mine],
        "all_gather": lambda: np.concatenate(inputs),
        "gather": lambda: np.concatenate(inputs),
        "broadcast": lambda: inputs[root],
        "scatter": lambda: inputs[root][mine],
        "all_to_all": lambda: np.concatenate([one[mine] for one in inputs]),
        "send_recv": lambda: inputs[(rank - 1) % RANKS],
    }[name]()


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "barrier"])
@pytest.mark.parametrize("rank", range(RANKS))
def test_the_right_result_passes_and_others_do_not(name: str, rank: int) -> None:
    root, shift, collective = 1, 12345, COLLECTIVES[name]
    values = Values(np.dtype("float32"), RANKS, "sum" if collective.reduces else None)
    elements = COUNT * (RANKS if collective.parted else 1)
    result = _play(name, _inputs(name, values, root, shift), rank, root).copy()
    sections = expected_sections(name, rank, RANKS, root, elements, COUNT)
    assert bool(sections) == collective.has_result(rank, root)
    assert wrong_elements(result, sections, values, shift) == (0, "")
    if not sections:
        return
    assert wrong_elements(result, sections, values, shift + 1)[0] > result.size / 2  # of another batch
    assert wrong_elements(np.roll(result, 4096), sections, values, shift)[0] > result.size / 2
    assert wrong_elements(np.zeros_like(result), sections, values, shift)[0] == result.size
    for wrong in (0.0, np.nan, np.inf, result[-1] * np.float32(1.001)):
        spoiled = result.copy()
        spoiled[-1] = wrong
        count, text = wrong_elements(spoiled, sections, values, shift)
        assert count == 1
        assert text.startswith(f"element {result.size - 1} of {result.size} is ")


def test_ranks_that_put_in_nothing_clear_what_was_there() -> None:
    values = Values(np.dtype("float32"), RANKS)
    inputs = _inputs("broadcast", values, 1, 5)
    assert not inputs[0].any()
    assert inputs[1].all()


def _combinations() -> list[tuple[str, str]]:
    whole = [name for name in DTYPES if "int" in name]
    return [(d, op) for d in DTYPES for op in OPS if d in whole or op not in ("band", "bor", "bxor")]


@pytest.mark.parametrize(("dtype", "op"), _combinations())
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_reductions_step_by_step(dtype: str, op: str, ranks: int) -> None:
    """Reduced one by one in the dtype itself, as libraries do: within the tolerance, and far from its limits."""
    pytest.importorskip("ml_dtypes")
    kind = numpy_dtype(dtype)
    values = Values(kind, ranks, op)
    step = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
    step |= {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
    with np.errstate(over="ignore"):
        total = values.table(0).copy()
        for rank in range(1, ranks):
            total = step[op](total, values.table(rank)).astype(kind)
        if op == "avg":
            total = (total / ranks).astype(kind)
    sections = expected_sections("all_reduce", 0, ranks, 0, PERIOD, PERIOD)
    assert wrong_elements(total, sections, values, 0) == (0, "")
    assert values.tolerance <= 0.1


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 64])
def test_sums_of_a_whole_chain(dtype: str, ranks: int) -> None:
    """As many sums as fit one batch stay finite and exact enough, and one that is left out shows."""
    pytest.importorskip("ml_dtypes")
    kind = numpy_dtype(dtype)
    chain = min(200, Values(kind, ranks, "sum").longest_chain())
    assert chain >= 1
    values = Values(kind, ranks, "sum", chain)
    total = Values(kind, ranks, "sum").table(-1).copy()
    before = total
    for _ in range(chain - 1):
        before, total = total, (total * kind.type(ranks)).astype(kind)
    assert np.isfinite(total.astype(np.float64)).all()
    sections = expected_sections("all_reduce", 0, ranks, 0, PERIOD, PERIOD)
    assert wrong_elements(total, sections, values, 0) == (0, "")
    if chain > 1:
        assert wrong_elements(before, sections, values, 0)[0] == PERIOD


def test_batches_of_float32_are_long_enough() -> None:
    """A batch of one call would measure the barrier before it."""
    assert Values(np.dtype("float32"), 2, "sum").longest_chain() >= 200
    assert Values(np.dtype("float32"), 8, "sum").longest_chain() >= 50
