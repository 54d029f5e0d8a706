"""Legacy Keras: both kinds of its optimizers, on two ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tf_keras")

from faces.keras import test_keras as shared

hvd, keras = shared.hvd, shared.keras
KINDS = ["optimizers", "optimizers.legacy"]


def kind_of(name: str) -> Any:
    return keras.optimizers.legacy if "legacy" in name else keras.optimizers


def check_nothing_else_is_loaded() -> None:
    assert keras.__name__ == "tf_keras"
    assert issubclass(hvd.callbacks.MetricAverageCallback, keras.callbacks.Callback)
    assert "keras" not in sys.modules, "Keras 3"


def check_same_as_one(name: str) -> None:
    """Ranks begin with weights of their own: the callback gives them those of rank 0."""
    kinds, share = kind_of(name), (hvd.rank(), hvd.size())
    for options in ({"run_eagerly": True}, {}, {"jit_compile": True}):
        want, told = shared.train(kinds.Adam(0.05), (0, 1), **options)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        optimizer = hvd.DistributedOptimizer(kinds.Adam(0.05))
        assert isinstance(optimizer, kinds.Adam)
        got, history = shared.train(optimizer, share, callbacks, seed=hvd.rank(), **options)
        assert_close(got, want)
        shared.assert_equal_on_all(got, options)
        assert history["loss"][-1] == pytest.approx(told["loss"][-1], rel=1e-2)
        assert len(set(hvd.allgather_object(history["loss"][-1]))) == 1


def assert_close(got: Any, want: Any) -> None:
    for one, other in zip(shared.weights(got), shared.weights(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)


def check_accumulation(name: str) -> None:
    """Two passes, their sum or mean, change what one pass over both batches does."""
    kinds, share = kind_of(name), (hvd.rank(), hvd.size())
    x, y = shared.data()
    both = 2 * shared.BATCH
    keras.utils.set_random_seed(0)
    want = shared.model_of(kinds.SGD(0.02))
    want.fit(x, y, batch_size=both, epochs=2, shuffle=False, verbose=0)
    for rate, averages in ((0.01, False), (0.02, True)):
        for options in ({"run_eagerly": True}, {}):
            optimizer = hvd.DistributedOptimizer(
                kinds.SGD(rate), backward_passes_per_step=2, average_aggregated_gradients=averages
            )
            got, _ = shared.train(optimizer, share, **options)
            assert_close(got, want)
            shared.assert_equal_on_all(got)
            assert int(optimizer.iterations) == 2 * shared.STEPS
    with pytest.raises(ValueError, match="IndexedSlices"):
        embed(hvd.DistributedOptimizer(kinds.SGD(0.1), backward_passes_per_step=2))
    embed(hvd.DistributedOptimizer(kinds.SGD(0.1), backward_passes_per_step=2, sparse_as_dense=True))


def embed(optimizer: Any) -> None:
    """Trains an embedding, whose gradients are sparse, on rows that each rank has alone."""
    model = keras.Sequential([keras.layers.Embedding(10, 2, input_length=1), keras.layers.Flatten()])
    model.compile(optimizer, loss="mse")
    rows = np.array([[hvd.rank()], [hvd.rank() + 4]])
    for _ in range(2):
        model.train_on_batch(rows, np.ones((2, 2)))


def check_sparse(name: str) -> None:
    for as_dense in (False, True):
        keras.utils.set_random_seed(0)
        optimizer = hvd.DistributedOptimizer(kind_of(name).SGD(0.5), sparse_as_dense=as_dense)
        model = keras.Sequential([keras.layers.Embedding(10, 2, input_length=1), keras.layers.Flatten()])
        model.compile(optimizer, loss="mse")
        before = model.get_weights()[0]
        model.train_on_batch(np.array([[hvd.rank()]]), np.ones((1, 2)))
        after = model.get_weights()[0]
        changed = np.flatnonzero((before != after).any(axis=1)).tolist()
        assert changed == list(range(hvd.size()))
        shared.assert_equal_on_all(model)


def check_by_hand(name: str) -> None:
    """``minimize`` reduces; ``apply_gradients`` applies what it is given."""
    import tensorflow as tf

    rank, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2
    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(kind_of(name).SGD(1.0))

    def loss() -> Any:
        return variable * (rank + 1.0)

    optimizer.minimize(loss, [variable])
    assert variable.numpy().tolist() == [-mean]
    tf.function(lambda: optimizer.minimize(loss, [variable]) and None)()
    assert variable.numpy().tolist() == [-2 * mean]
    optimizer.apply_gradients([(tf.constant([float(rank)]), variable)])
    assert variable.numpy().tolist() == [-2 * mean - rank]
    again = type(optimizer).from_config(optimizer.get_config())
    variable.assign([0.0])
    again.minimize(loss, [variable])
    assert variable.numpy().tolist() == [-mean]
    of_tensorflow = __import__("slipstream.tensorflow").tensorflow.DistributedOptimizer(
        kind_of(name).SGD(1.0)
    )
    of_tensorflow.minimize(loss, [variable])
    assert variable.numpy().tolist() == [-2 * mean]


def check_mixed_precision(name: str) -> None:
    """One rank's gradients are not finite: all ranks skip the step, and stay equal; scales too, where they grow."""
    kinds, share = kind_of(name), (hvd.rank(), hvd.size())
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for passes in (1, 2):
            asked = {"backward_passes_per_step": passes}
            scaled = keras.mixed_precision.LossScaleOptimizer(
                kinds.SGD(0.02), initial_scale=2.0**40, dynamic_growth_steps=3
            )
            inner = hvd.DistributedOptimizer(kinds.SGD(0.02), **asked)
            for given in (hvd.DistributedOptimizer(scaled, **asked), inner):
                model, _ = shared.train(given, share, epochs=8)
                shared.assert_equal_on_all(model, asked)
                scales = hvd.allgather_object(float(model.optimizer.loss_scale))
                assert len(set(scales)) == 1
            x, y = shared.data()
            if hvd.rank() == 1:
                x = x * np.float32("nan")
            before = [one.copy() for one in shared.weights(model)]
            model.fit(x[:24], y[:24], batch_size=24 // passes, epochs=1, verbose=0)
            for one, other in zip(shared.weights(model), before, strict=True):
                np.testing.assert_array_equal(one, other)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def check_late_build() -> None:
    """A model that is built by its first batch is broadcast after it."""
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), loss="mse")
    x, y = shared.data()
    model.fit(x, y, epochs=1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    shared.assert_equal_on_all(model)


def check_momentum() -> None:
    """The momentum is scaled with the learning rate for the step in which that changes, and then as it was."""
    seen: list[float] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(float(keras.backend.get_value(self.model.optimizer.momentum)))

    schedule = hvd.callbacks.LearningRateScheduleCallback(0.08, multiplier=0.5, start_epoch=1)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(0.08, momentum=0.8))
    model, history = shared.train(optimizer, (hvd.rank(), hvd.size()), [schedule, Watch()], epochs=3)
    steps = [0.8] * shared.STEPS
    assert seen == pytest.approx([*steps, *steps, 0.4, *steps[1:]])  # 0.08 in epoch 1: to the power of 0
    assert history["lr"] == pytest.approx([0.08, 0.08, 0.04])
    assert float(keras.backend.get_value(model.optimizer.momentum)) == pytest.approx(0.8)


def check_saving(name: str, folder: str) -> None:
    kinds, share = kind_of(name), (hvd.rank(), hvd.size())
    model, _ = shared.train(hvd.DistributedOptimizer(kinds.Adam(0.05)), share)
    for ending in (".keras", ".h5"):
        file = f"{folder}/{hvd.rank()}{ending}"
        model.save(file)
        plain = keras.models.load_model(file)
        assert type(plain.optimizer) is kinds.Adam
        again = hvd.load_model(file)
        assert isinstance(again.optimizer, kinds.Adam)
        x, y = shared.data()
        mine = slice(share[0] * 12, share[0] * 12 + 12)
        again.fit(x[mine], y[mine], batch_size=4, epochs=1, verbose=0)
        shared.assert_equal_on_all(again)


def check_operations() -> None:
    rank, size = hvd.rank(), hvd.size()
    assert float(hvd.allreduce(1.0 + rank, op=hvd.Sum)) == sum(range(1, size + 1))
    assert hvd.allgather([rank] * (rank + 1)).numpy().tolist() == [
        r for r in range(size) for _ in range(r + 1)
    ]
    assert hvd.broadcast([float(rank)], 1).numpy().tolist() == [1.0]
    assert hvd.reducescatter(np.arange(float(size)), op=hvd.Sum).numpy().tolist() == [rank * size]
    with pytest.raises(RuntimeError, match="eager"):
        hvd.broadcast_global_variables(0)


def check_mistakes() -> None:
    with pytest.raises(ValueError, match="wrapped already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    with pytest.raises(TypeError, match="optimizer of tf_keras"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="at least 1"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0)
    with pytest.raises(ValueError, match=r"tf_keras\.layers\.Layer"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=[3])


def check_batch_norm() -> None:
    import tensorflow as tf

    import slipstream.tensorflow as of_tensorflow

    rank, size = hvd.rank(), hvd.size()
    for shape in ((4 * size, 3), (4 * size, 2, 2, 3)):
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        whole, part = tf.keras.layers.BatchNormalization(), of_tensorflow.SyncBatchNormalization()
        want = whole(x, training=True).numpy()[4 * rank : 4 * rank + 4]
        np.testing.assert_allclose(
            part(x[4 * rank : 4 * rank + 4], training=True), want, rtol=1e-3, atol=1e-3
        )


def check_state_of_tensorflow() -> None:
    import slipstream.tensorflow as of_tensorflow

    model, _ = shared.train(keras.optimizers.Adam(0.1), (hvd.rank(), hvd.size()), seed=hvd.rank())
    state = of_tensorflow.elastic.TensorFlowKerasState(model, epoch=hvd.rank())
    state.sync()
    shared.assert_equal_on_all(model)
    assert state.epoch == 0


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize(
    "check", [check_same_as_one, check_accumulation, check_sparse, check_by_hand, check_mixed_precision]
)
def test_optimizers(legacy_ranks: Any, check: Any, kinds: str) -> None:
    legacy_ranks(check, kinds)


@pytest.mark.parametrize(
    "check",
    [
        check_nothing_else_is_loaded,
        check_late_build,
        check_momentum,
        check_operations,
        check_mistakes,
        check_batch_norm,
        check_state_of_tensorflow,
        shared.check_kinds_of_reductions,
        shared.check_rates,
        shared.check_partial,
        shared.check_elastic_state,
    ],
)
def test_on_ranks(legacy_ranks: Any, check: Any) -> None:
    legacy_ranks(check)


@pytest.mark.parametrize("kinds", KINDS)
def test_saving(legacy_ranks: Any, tmp_path: Path, kinds: str) -> None:
    legacy_ranks(check_saving, kinds, str(tmp_path))


def test_the_best_model(legacy_ranks: Any, tmp_path: Path) -> None:
    legacy_ranks(shared.check_best_model, str(tmp_path))


def test_a_rank_that_is_killed(legacy_ranks: Any) -> None:
    legacy_ranks(shared.check_lost, dying=[1])


def check_by_way_of_keras_3() -> None:
    """The face of Keras 3 takes optimizers of legacy Keras, too. It loads Keras 3: nothing may follow."""
    import tensorflow as tf

    import slipstream.keras as of_keras_3

    variable, own = tf.Variable([0.0]), keras.layers.Dense(1)
    optimizer = of_keras_3.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.minimize(lambda: variable * (hvd.rank() + 1.0), [variable])
    assert variable.numpy().tolist() == [-(hvd.size() + 1) / 2]
    own.build((1,))
    partial = of_keras_3.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=own, scale_local_gradients=False
    )
    own.kernel.assign([[0.0]])
    partial.minimize(lambda: own.kernel * (hvd.rank() + 1.0), [own.kernel])
    assert own.kernel.numpy().tolist() == [[-(hvd.rank() + 1.0)]]


def test_by_way_of_keras_3(legacy_ranks: Any) -> None:
    legacy_ranks(check_by_way_of_keras_3)
