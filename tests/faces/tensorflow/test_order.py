"""Operations that functions run in conditions, loops and functions of their own meet those of the other ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream.tensorflow as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from faces.tensorflow.conftest import NEGOTIATED, QUIET, WORKER  # noqa: E402


def late(on: int) -> Any:
    """Zero, after a while on every third rank: there, what needs it comes after what does not."""
    return (
        tf.reduce_sum(tf.ones([160, 160]) @ tf.ones([160, 160])) * 0 if hvd.rank() % 3 == on else tf.zeros([])
    )


def nested() -> tuple[Any, Any]:
    """A function with operations everywhere, all of the same shape, and the variable that they share."""
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def inner(factor: Any) -> Any:
        return hvd.allreduce(variable * factor + late(0), op=hvd.Sum)

    @tf.function
    def outer(x: Any) -> Any:
        found = [inner(2.0), hvd.allreduce(x + late(1), op=hvd.Sum), inner(3.0)]
        within = x
        if x[0] > 0:
            within = hvd.allreduce(variable * 5, op=hvd.Sum)
        found += [within, hvd.allreduce(x * 7 + late(2), op=hvd.Sum)]
        for _ in tf.range(3):
            variable.assign_add(hvd.allreduce(variable * 0.0, op=hvd.Sum) * 0.0)
        return [*found, hvd.allreduce(x * 9, op=hvd.Sum)]

    inner(1.0)  # has a graph of its own before the other one calls it
    return outer, variable


def check_forward() -> None:
    outer, _ = nested()
    for _ in range(20):
        for factor, one in zip([2, 1, 3, 5, 7, 9], outer(tf.constant([1.0, 2.0])), strict=True):
            np.testing.assert_array_equal(one.numpy(), np.array([1.0, 2.0]) * factor * hvd.size())


def check_backward() -> None:
    outer, variable = nested()
    x = tf.Variable([1.0, 2.0])
    for _ in range(5):
        with tf.GradientTape() as tape:
            total = tf.add_n(outer(x))
        of_x, of_variable = tape.gradient(total, [x, variable])
        np.testing.assert_array_equal(of_x.numpy(), np.full(2, (1 + 7 + 9) * hvd.size()))
        np.testing.assert_array_equal(of_variable.numpy(), np.full(2, (2 + 3 + 5) * hvd.size()))


def check_names_of_places() -> None:
    """A mismatch tells which operation of which function it is."""

    @tf.function
    def step(x: Any) -> Any:
        hvd.allreduce(x, op=hvd.Sum)
        if x[0] > 0:
            return hvd.allreduce(tf.ones([2 + min(hvd.rank(), 1)]), op=hvd.Sum)[0]
        return x[0]

    place = r"\(operation 1 in cond_true in step \(test_order\.py:[0-9]+\)\)"
    text = rf"rank 0 with .*\(2,\).*{place}.*rank 1 with .*\(3,\)"
    with pytest.raises(tf.errors.FailedPreconditionError, match=text):
        step(tf.ones(2))


def check_unused_results() -> None:
    """What nobody uses is waited for, and its errors are raised: also in a loop, and in a condition."""

    @tf.function
    def step(x: Any, bad: Any) -> Any:
        hvd.allreduce(x, op=hvd.Sum)
        if x[0] > 0:
            hvd.allreduce(x + 1, op=hvd.Sum)
        for _ in tf.range(3):
            hvd.allreduce(bad, op=hvd.Sum)
        return hvd.allreduce(x, op=hvd.Sum)

    for turn in range(6):
        bad = tf.ones([2 + turn % 2 * hvd.rank()])
        if turn % 2:
            with pytest.raises(
                tf.errors.FailedPreconditionError, match=r"Mismatched allreduce.*in while_body in step"
            ):
                step(tf.ones(2), bad)
        else:
            np.testing.assert_array_equal(step(tf.ones(2), bad).numpy(), np.full(2, hvd.size()))


def check_the_first_function() -> None:
    """It has an order as well: nothing of slipstream is in a graph before."""
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def inner(factor: Any) -> Any:
        return hvd.allreduce(variable * factor, op=hvd.Sum)

    @tf.function
    def outer() -> Any:
        return inner(2.0 + late(0)), inner(3.0 + late(1))

    outer()
    calls = [
        one for one in outer.get_concrete_function().graph.get_operations() if "PartitionedCall" in one.type
    ]
    assert calls[0].name in [one.name for one in calls[1].control_inputs]
    for _ in range(10):
        for factor, one in zip([2, 3], outer(), strict=True):
            np.testing.assert_array_equal(one.numpy(), np.array([1.0, 2.0]) * factor * hvd.size())


def check_captured() -> None:
    """The first node of a branch or a body is an operation on a tensor of the function outside."""

    @tf.function
    def step(x: Any) -> Any:
        y = hvd.allreduce(x, op=hvd.Sum) if x[0] > 0 else x
        for _ in tf.range(3):
            y = y + hvd.allreduce(x, op=hvd.Sum)
        return y

    np.testing.assert_array_equal(step(tf.ones(2)).numpy(), np.full(2, 4 * hvd.size()))


def check_process_sets() -> None:
    """The places of a set's operations do not count for ranks that are not in it."""
    some = hvd.add_process_set([0, 1])

    @tf.function
    def step(x: Any) -> Any:
        if hvd.rank() < 2:
            x = hvd.allreduce(x, op=hvd.Max, process_set=some)
        return hvd.allreduce(x, op=hvd.Sum)

    for _ in range(3):
        np.testing.assert_array_equal(step(tf.ones(2)).numpy(), np.full(2, hvd.size()))
    hvd.remove_process_set(some)


CHECKS = [check_forward, check_backward, check_captured, check_unused_results]


@pytest.mark.parametrize("check", [*CHECKS, check_names_of_places])
def test_on_ranks(ranks: Any, check: Any) -> None:
    ranks(check)


def test_process_sets(three: Any) -> None:
    three(check_process_sets)


@pytest.mark.parametrize("environment", [NEGOTIATED, QUIET])
def test_the_first_function(tmp_path: Path, environment: dict[str, str]) -> None:
    ranks = Ranks(2, tmp_path, worker=WORKER, environment=environment)
    try:
        ranks(check_the_first_function)
    finally:
        ranks.stop()


@pytest.mark.parametrize("check", [check_forward, check_backward])
def test_by_python(negotiated: Any, check: Any) -> None:
    negotiated(check)
