"""A rank of test_strategy.py: trains a model of Keras in the scope of slipstream's strategy."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

import slipstream.tensorflow as hvd
import slipstream.tensorflow.keras as hvd_keras

mode = sys.argv[1]
if mode == "early":
    try:
        hvd.distribute.Strategy()
    except ValueError as error:
        print(f"raised {error}")
hvd.init()
rank, size = hvd.rank(), hvd.size()
keras.utils.set_random_seed(1 + rank)  # the strategy gives all ranks the values of rank 0
strategy = hvd.distribute.Strategy()


def model_in_scope(eager: bool) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"], run_eagerly=eager)
    return model


def digits() -> tuple[np.ndarray, np.ndarray]:
    found = load_digits()
    return (found.data[:1536] / 16).astype("float32"), found.target[:1536].astype("int64")


def train(eager: bool) -> None:
    images, labels = digits()
    model = model_in_scope(eager)
    average = hvd_keras.callbacks.MetricAverageCallback()
    told = model.fit(
        images, labels, batch_size=64, epochs=3, shuffle=False, verbose=0, callbacks=[average]
    ).history
    weights = np.concatenate([one.ravel() for one in model.get_weights()])
    assert (hvd.allgather(weights[None]).numpy() == weights).all()
    assert len(model.predict(images[:120], batch_size=12, verbose=0)) == 120 // size
    print(
        "told "
        + json.dumps({"loss": told["loss"], "accuracy": told["accuracy"], "sum": float(weights.sum())})
    )


def rows_that_do_not_divide() -> None:
    model = model_in_scope(eager=False)
    images, labels = digits()
    steps: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    model.fit(images[:65], labels[:65], batch_size=64, shuffle=False, verbose=0, callbacks=[count])
    assert steps == [0, 1]  # on all ranks, though the second batch has one row
    weights = np.concatenate([one.ravel() for one in model.get_weights()])
    assert np.isfinite(weights).all()
    assert (hvd.allgather(weights[None]).numpy() == weights).all()


def reductions() -> None:
    total = size * (size + 1) // 2

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        def of_replica() -> tuple[tf.Tensor, tf.Tensor]:
            mine = tf.constant([float(rank + 1)])
            context = tf.distribute.get_replica_context()
            added, mean = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
            return context.all_reduce(added, mine), context.all_reduce(mean, mine)

        return strategy.run(of_replica)

    added, mean = (strategy.experimental_local_results(one)[0].numpy() for one in step())
    assert (added, mean) == (total, total / size)
    assert strategy.num_replicas_in_sync == size

    def mine() -> tf.Tensor:
        return tf.constant(float(rank + 1))

    @tf.function
    def inside(op: tf.distribute.ReduceOp) -> tf.Tensor:
        return strategy.reduce(op, strategy.run(mine), axis=None)

    for op, wanted in ((tf.distribute.ReduceOp.SUM, total), (tf.distribute.ReduceOp.MEAN, total / size)):
        assert float(strategy.reduce(op, strategy.run(mine), axis=None)) == wanted
        assert float(inside(op)) == wanted
        assert float(strategy.reduce(op, rank + 1.0, axis=None)) == wanted
    rows = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.from_tensors([float(context.input_pipeline_id)])
    )
    assert [float(one[0]) for one in rows] == [rank]


def everyone(axis: int, dtype: str) -> list[np.ndarray]:
    """What each rank gathers: of another size along the axis, for other random numbers."""
    found = []
    for one in range(size):
        shape = [2, 3, 4]
        shape[axis] += one
        found.append(np.random.default_rng(one).integers(0, 100, shape).astype(dtype))
    return found


def gathers() -> None:
    def within(value: np.ndarray, axis: int) -> Any:
        return tf.distribute.get_replica_context().all_gather(tf.constant(value), axis=axis)

    for axis in (0, 1, 2, -1, -3):
        for dtype in ("float32", "int32", "int64"):
            given = everyone(axis, dtype)
            mine, wanted = given[rank], np.concatenate(given, axis)
            values = strategy.experimental_distribute_values_from_function(lambda _, one=mine: one)
            ways = [
                lambda one=mine, at=axis: strategy.run(within, args=(one, at)),
                lambda one=mine, at=axis: tf.function(lambda: strategy.run(within, args=(one, at)))(),
                lambda one=mine, at=axis: strategy.gather(tf.constant(one), axis=at),
                lambda one=values, at=axis: strategy.gather(one, axis=at),
            ]
            for number, way in enumerate(ways):
                np.testing.assert_array_equal(way(), wanted, f"{axis} {dtype} {number}")
    np.testing.assert_array_equal(strategy.gather(tf.constant(rank), axis=0), range(size))
    for axis in (3, -4):
        with pytest.raises(ValueError, match=f"has no axis {axis}"):
            strategy.gather(tf.zeros([2, 2, 2]), axis=axis)


def gradient_of_gather() -> None:
    """Each rank's part of the sum over all ranks of the gradients."""

    def step() -> Any:
        mine = tf.fill([2, 1 + rank], 1.0)
        factors = tf.reshape(
            tf.range(float(size * (1 + size))), [2, -1]
        )  # one for each element of the result
        with tf.GradientTape() as tape:
            tape.watch(mine)
            context = tf.distribute.get_replica_context()
            loss = tf.reduce_sum(context.all_gather(mine, axis=1) * factors)
        return tape.gradient(loss, mine)

    factors = size * np.arange(float(size * (1 + size))).reshape(2, -1)
    start = sum(1 + one for one in range(rank))
    np.testing.assert_array_equal(strategy.run(step), factors[:, start : start + 1 + rank])


def within_no_rank_alone() -> None:
    """What TensorFlow would take for equal on all ranks, or keep on the host."""
    total = size * (size + 1) // 2
    added, mean = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

    def of_replica() -> tuple[Any, Any]:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(added, tf.constant(rank + 1)), context.replica_id_in_sync_group

    assert [int(one) for one in strategy.run(of_replica)] == [total, rank]
    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: float(context.replica_id_in_sync_group + 1)
    )
    assert float(strategy.reduce(added, numbers, axis=None)) == total
    assert float(strategy.reduce(mean, numbers, axis=None)) == total / size
    rows = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensors(tf.range(2 * size)).unbatch().batch(size)
    )
    assert [int(strategy.reduce(added, one, axis=None)[0]) for one in rows] == [
        sum(range(size)),
        sum(range(size, 2 * size)),
    ]


def lost() -> None:
    images, labels = digits()
    model = model_in_scope(eager=False)

    def leave(batch: int, logs: object) -> None:
        if rank == size - 1 and batch == 2:
            os._exit(0)

    leaves = keras.callbacks.LambdaCallback(on_train_batch_end=leave)
    try:
        model.fit(images, labels, batch_size=64, verbose=0, callbacks=[leaves])
    except (hvd.HorovodInternalError, tf.errors.OpError) as error:
        print("raised " + str(error).replace("\n", " "))


{
    "graph": lambda: train(eager=False),
    "eager": lambda: train(eager=True),
    "rows": rows_that_do_not_divide,
    "reductions": reductions,
    "gathers": lambda: (gathers(), gradient_of_gather(), within_no_rank_alone()),
    "lost": lost,
    "early": lambda: None,
}[mode]()
print("done")
