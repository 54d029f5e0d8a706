"""Ranks that join before they have computed a gradient with a distributed tape or optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

import slipstream.keras as hvd_keras  # noqa: E402
import slipstream.tensorflow as hvd  # noqa: E402

SHAPES: dict[str, tuple[Any, ...]] = {
    "weight": (80, 70),
    "bias": (70,),
    "half": (33, 5),
    "brain": (9,),
    "one": (),
}
KINDS = {"half": tf.float16, "brain": tf.bfloat16}


def first() -> bool:
    """Whether this rank joins before the others step: the last one; of more than two ranks also rank 0."""
    return hvd.rank() == hvd.size() - 1 or (hvd.size() > 2 and hvd.rank() == 0)


def stepping() -> list[int]:
    return [rank for rank in range(hvd.size()) if rank != hvd.size() - 1 and (hvd.size() == 2 or rank)]


def gradient(name: str, rank: int, step: int) -> Any:
    """Numbers that 16 bits hold exactly, and their sums."""
    draws = np.random.default_rng([list(SHAPES).index(name), rank, step]).integers(-8, 9, SHAPES[name])
    return np.asarray(draws, np.float64)


def variables() -> dict[str, Any]:
    return {
        name: tf.Variable(tf.zeros(shape, KINDS.get(name, tf.float32)), name=name)
        for name, shape in SHAPES.items()
    }


def given(step: int) -> list[Any]:
    """This rank's gradients."""
    return [tf.cast(gradient(name, hvd.rank(), step), KINDS.get(name, tf.float32)) for name in SHAPES]


def loss_of(params: list[Any], grads: list[Any]) -> Any:
    return tf.add_n([tf.cast(tf.reduce_sum(p * g), tf.float32) for p, g in zip(params, grads, strict=True)])


def wanted(op: int, name: str, ranks: list[int], step: int) -> Any:
    found = [gradient(name, rank, step) for rank in ranks]
    if op in (hvd.Sum, hvd.Average):
        return sum(found) / (hvd.size() if op == hvd.Average else 1)
    return functools.reduce(np.minimum if op == hvd.Min else np.maximum, found)


def eager_tape(**options: Any) -> Callable[[list[Any], list[Any]], list[Any]]:
    def reduce(params: list[Any], grads: list[Any]) -> list[Any]:
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = loss_of(params, grads)
        return tape.gradient(loss, params)  # type: ignore[no-any-return]

    return reduce


def tape_in_a_function(**options: Any) -> Callable[[list[Any], list[Any]], list[Any]]:
    return tf.function(eager_tape(**options))  # type: ignore[no-any-return]


def check_tape(make: str, options: dict[str, Any]) -> None:
    reduce = globals()[make](**options)
    params = list(variables().values())
    op, everyone = options.get("op", hvd.Average), list(range(hvd.size()))

    def steps(numbers: range, ranks: list[int]) -> None:
        for number in numbers:
            found = reduce(params, given(number))
            for name, one in zip(SHAPES, found, strict=True):
                np.testing.assert_allclose(
                    tf.cast(one, tf.float64),
                    wanted(op, name, ranks, number),
                    rtol=0.02,
                    atol=1e-3,
                    err_msg=name,
                )

    steps(range(0 if first() else 3), stepping())
    assert int(hvd.join()) in stepping()
    steps(range(3, 6), everyone)
    steps(range(6, 6 if first() else 8), stepping())
    assert int(hvd.join()) in stepping()


def check_two_lists() -> None:
    """The others reduce two lists of gradients; this rank then comes to the second one first."""
    params = variables()
    lists = [[params[name] for name in names] for names in (("weight", "one"), ("bias", "half", "one"))]
    reduce = eager_tape(op=hvd.Sum)

    def step(which: int, number: int, ranks: list[int]) -> None:
        names = [one.name.partition(":")[0] for one in lists[which]]
        grads = [given(number)[list(SHAPES).index(name)] for name in names]
        for name, one in zip(names, reduce(lists[which], grads), strict=True):
            np.testing.assert_allclose(
                tf.cast(one, tf.float64), wanted(hvd.Sum, name, ranks, number), err_msg=name
            )

    if not first():
        for number, which in enumerate((0, 1, 0)):
            step(which, number, stepping())
    hvd.join()
    for number, which in enumerate((1, 0, 1), 5):
        step(which, number, list(range(hvd.size())))


def check_sparse() -> None:
    table = tf.Variable(tf.zeros([20, 2]))
    weight = tf.Variable(tf.ones([3]))

    def step(number: int, ranks: list[int]) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 7])) + tf.reduce_sum(weight) * (
                hvd.rank() + 1.0 + number
            )
        rows, dense = tape.gradient(loss, [table, weight])
        found = tf.math.unsorted_segment_sum(rows.values, rows.indices, 20).numpy()
        expected = np.zeros((20, 2))
        for rank in ranks:
            expected[rank] += 1
            expected[7] += 1
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(dense, np.full(3, sum(rank + 1 + number for rank in ranks)))

    for number in range(0 if first() else 2):
        step(number, stepping())
    hvd.join()
    step(5, list(range(hvd.size())))


def check_keras(compiled: bool) -> None:
    """An optimizer of Keras, made before or not: nothing is exchanged before its first step."""
    params = [
        keras.Variable(np.zeros(SHAPES[name], "float32"), name=name) for name in ("weight", "bias", "one")
    ]
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(params)

    def apply(grads: list[Any]) -> None:
        optimizer.apply(grads, params)

    run = tf.function(apply) if compiled else apply

    def step(number: int) -> None:
        run([tf.cast(gradient(one.name, hvd.rank(), number), tf.float32) for one in params])

    for number in range(0 if first() else 3):
        step(number)
    last = int(hvd.join())
    steps = [(stepping(), number) for number in range(3)]
    hvd.broadcast_variables([one.value for one in params], last)
    step(3)
    steps.append((list(range(hvd.size())), 3))
    for one in params:
        expected = -sum(wanted(hvd.Average, one.name, ranks, number) for ranks, number in steps)
        np.testing.assert_allclose(one.numpy(), expected, rtol=1e-5, atol=1e-5)


OPTIONS: dict[str, dict[str, Any]] = {
    "average": {},
    "sum": {"op": hvd.Sum},
    "min": {"op": hvd.Min},
    "max": {"op": hvd.Max},
    "predivide": {"gradient_predivide_factor": 2.0},
    "groups": {"groups": 2},
    "bf16": {"compression": hvd.Compression.bf16},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("make", ["eager_tape", "tape_in_a_function"])
def test_tapes(ranks: Any, make: str, options: str) -> None:
    ranks(check_tape, make, OPTIONS[options])


@pytest.mark.parametrize("make", ["eager_tape", "tape_in_a_function"])
def test_tapes_through_python(negotiated: Any, make: str) -> None:
    negotiated(check_tape, make, {})


@pytest.mark.parametrize("check", [check_two_lists, check_sparse])
def test_lists(ranks: Any, check: Any) -> None:
    ranks(check)


@pytest.mark.parametrize("compiled", [False, True])
def test_optimizers_of_keras(ranks: Any, compiled: bool) -> None:
    ranks(check_keras, compiled)
