"""A rank of test_strategy.py: trains a model of Keras in the scope of slipstream's strategy."""

from __future__ import annotations

import json
import os
import sys

import keras
import numpy as np
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
    "lost": lost,
    "early": lambda: None,
}[mode]()
print("done")
