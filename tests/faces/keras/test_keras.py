"""slipstream.keras: what Keras trains on some ranks is what it trains on one with all of their batches.

Ranks with legacy Keras (test_tf_keras.py) run some of these programs, too.
"""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
keras = pytest.importorskip("tf_keras" if LEGACY else "keras")

hvd = importlib.import_module("slipstream.tensorflow.keras" if LEGACY else "slipstream.keras")

EXAMPLES, BATCH, STEPS = 48, 12, 4  # BATCH: of all ranks together


def data() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, 5)).astype(np.float32)
    return x, (x @ generator.normal(size=(5, 2)).astype(np.float32)) ** 2


def train(
    optimizer: Any,
    share: tuple[int, int],
    callbacks: Any = (),
    seed: int = 0,
    epochs: int = 2,
    **compile: Any,
) -> Any:
    """A model after some epochs on this share (number, of how many) of each batch; and what ``fit`` tells."""

    keras.utils.set_random_seed(seed)
    x, y = data()
    number, of = share
    mine = np.arange(EXAMPLES).reshape(-1, of, BATCH // of)[:, number].reshape(-1)
    model = model_of(optimizer, **compile)
    told = model.fit(
        x[mine],
        y[mine],
        batch_size=BATCH // of,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )
    return model, told.history


def model_of(optimizer: Any, **compile: Any) -> Any:
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2, dtype="float32")]
    )
    model.compile(optimizer, loss="mse", metrics=["mae"], **compile)
    return model


def value_of(variable: Any) -> Any:
    return variable.numpy() if LEGACY else np.asarray(keras.ops.convert_to_numpy(variable))


def weights(model: Any) -> list[Any]:
    return [value_of(one) for one in model.trainable_weights]


def assert_equal_on_all(model: Any, where: object = "") -> None:
    mine = [one.tobytes() for one in weights(model)]
    assert all(one == mine for one in hvd.allgather_object(mine)), where


def check_same_as_one() -> None:
    """Ranks begin with weights of their own: the callback gives them those of rank 0."""
    rank, size = hvd.rank(), hvd.size()
    jit: list[dict[str, Any]] = [{"run_eagerly": True}, {}]
    if keras.backend.backend() in ("jax", "tensorflow"):
        jit.append({"jit_compile": True})
    for options in jit:
        want, told = train(keras.optimizers.Adam(0.05), (0, 1), **options)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.05))
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        got, history = train(optimizer, (rank, size), callbacks, seed=rank, **options)
        for one, other in zip(weights(got), weights(want), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)
        assert_equal_on_all(got, options)
        assert history["loss"][-1] == pytest.approx(told["loss"][-1], rel=1e-2)
        assert len(set(hvd.allgather_object(history["loss"][-1]))) == 1


def check_joins_first() -> None:
    """Rank 0 trains while the others have joined before their first step; then all train."""
    rank, size = hvd.rank(), hvd.size()
    x, y = data()
    for options in ({"run_eagerly": True}, {}):
        keras.utils.set_random_seed(0)
        plain = model_of(keras.optimizers.SGD(0.1 / size), **options)
        model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), **options)
        model.set_weights(plain.get_weights())
        for step in range(3):
            plain.train_on_batch(x[step : step + BATCH], y[step : step + BATCH])
            if rank == 0:
                model.train_on_batch(x[step : step + BATCH], y[step : step + BATCH])
        assert int(hvd.join()) == 0
        if rank == 0:
            for one, other in zip(weights(model), weights(plain), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        model.set_weights(plain.get_weights())
        model.train_on_batch(x[rank:BATCH:size], y[rank:BATCH:size])
        whole = model_of(keras.optimizers.SGD(0.1), **options)
        whole.set_weights(plain.get_weights())
        whole.train_on_batch(x[:BATCH], y[:BATCH])
        for one, other in zip(weights(model), weights(whole), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def check_late_build() -> None:
    """A model without an Input, on all ranks and on all but the first: its variables are made in the first batch."""
    rank, size = hvd.rank(), hvd.size()
    x, y = data()
    for built in ((), (0,)):
        keras.utils.set_random_seed(rank)
        model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
        if rank in built:
            model.build((None, 5))
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), loss="mse")
        broadcasts = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x[rank::size], y[rank::size], batch_size=4, verbose=0, callbacks=[broadcasts])
        assert_equal_on_all(model, built)


def check_kinds() -> None:
    """Keras's own accumulation, EMA: equal weights on all ranks."""
    assert_kinds(
        [
            ({}, {"backward_passes_per_step": 2}),
            ({"gradient_accumulation_steps": 2}, {}),
            ({"use_ema": True, "clipnorm": 1.0}, {}),
        ]
    )


def check_kinds_of_reductions() -> None:
    """Compression, groups: equal weights on all ranks."""
    assert_kinds(
        [
            ({}, {"compression": hvd.Compression.fp16}),
            ({}, {"compression": hvd.Compression.topk(0.2)}),
            ({}, {"groups": 2, "gradient_predivide_factor": 2.0}),
            ({}, {"op": hvd.Sum}),
        ]
    )


def assert_kinds(kinds: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    share = hvd.rank(), hvd.size()
    for given, asked in kinds:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.02, **given), **asked)
        got, _ = train(optimizer, share)
        assert_equal_on_all(got, (given, asked))
        assert all(np.isfinite(one).all() for one in weights(got))


def check_accumulation() -> None:
    """The sum of two passes, or their mean."""
    share = hvd.rank(), hvd.size()
    mean = keras.optimizers.SGD(0.02, gradient_accumulation_steps=2)
    want, _ = train(mean, (0, 1))
    for rate, averages in ((0.01, False), (0.02, True)):
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(rate), backward_passes_per_step=2, average_aggregated_gradients=averages
        )
        got, _ = train(optimizer, share)
        for one, other in zip(weights(got), weights(want), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def check_mixed_precision() -> None:
    """One rank's gradients overflow: all ranks skip the step, and stay equal."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.02), initial_scale=2.0**40)
        for given in (hvd.DistributedOptimizer(scaled), hvd.DistributedOptimizer(keras.optimizers.SGD(0.02))):
            model, _ = train(given, (hvd.rank(), hvd.size()), epochs=8)
            assert type(model.optimizer).__name__ == "LossScaleOptimizer"
            assert_equal_on_all(model)
            scales = hvd.allgather_object(float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale)))
            assert len(set(scales)) == 1
        keras.utils.set_random_seed(0)
        # NaN on rank 1 alone
        x, y = data()
        if hvd.rank() == 1:
            x = x * np.float32("nan")
        before = [one.copy() for one in weights(model)]
        model.fit(x[:BATCH], y[:BATCH], batch_size=BATCH, epochs=1, verbose=0)
        for one, other in zip(weights(model), before, strict=True):
            np.testing.assert_array_equal(one, other)
    finally:
        keras.config.set_dtype_policy("float32")


def check_operations() -> None:
    rank, size = hvd.rank(), hvd.size()
    assert hvd.allreduce(1.0 + rank, op=hvd.Sum) == sum(range(1, size + 1))
    for found, wanted in (
        (hvd.allreduce(np.full(3, 1.0 + rank)), [(size + 1) / 2] * 3),
        (hvd.allgather([rank] * (rank + 1)), [r for r in range(size) for _ in range(r + 1)]),
        (hvd.broadcast(keras.ops.ones(2) * rank, 1), [1.0, 1.0]),
        (hvd.reducescatter(np.arange(float(size)), op=hvd.Sum), [rank * size]),
    ):
        array = found.numpy() if keras.config.backend() == "tensorflow" else found
        assert isinstance(array, np.ndarray)
        assert array.tolist() == wanted
    variable = keras.Variable([float(rank)])
    hvd.broadcast_variables([variable], root_rank=1)
    assert keras.ops.convert_to_numpy(variable.value).tolist() == [1.0]
    with pytest.raises(RuntimeError, match="no global variables"):
        hvd.broadcast_global_variables(0)


def check_mistakes() -> None:
    once = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="wrapped already"):
        hvd.DistributedOptimizer(once)
    with pytest.raises(TypeError, match="optimizer of Keras 3"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="predivide"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 1.0)


def check_rates() -> None:
    rank, size = hvd.rank(), hvd.size()
    seen: list[float] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(float(value_of(self.model.optimizer.learning_rate)))

    warmup = hvd.callbacks.LearningRateWarmupCallback(0.04, warmup_epochs=2)
    later = hvd.callbacks.LearningRateScheduleCallback(0.04, multiplier=0.5, start_epoch=2)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.04))
    model, history = train(optimizer, (rank, size), [warmup, later, Watch()], epochs=4)
    ends = [0.04 / size * (epoch * (size - 1) / 2 + 1) for epoch in (1, 2)]
    assert history["lr"] == pytest.approx([*ends, 0.04, 0.02], rel=1e-5)
    assert seen[:STEPS] == sorted(seen[:STEPS])
    assert seen[0] < seen[STEPS - 1]
    assert_equal_on_all(model)


def check_partial() -> None:
    rank, size = hvd.rank(), hvd.size()
    keras.utils.set_random_seed(0)
    shared, own = keras.layers.Dense(3), keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((5,)), shared, own])
    model.compile(hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=own), loss="mse")
    x, y = data()
    model.fit(x[rank::size], y[rank::size], batch_size=4, epochs=1, verbose=0)
    kernels = hvd.allgather_object([value_of(one.kernel).tolist() for one in (shared, own)])
    assert all(one[0] == kernels[0][0] for one in kernels)
    assert all(one[1] != kernels[0][1] for one in kernels[1:])


def check_saving(folder: str) -> None:
    share = hvd.rank(), hvd.size()
    model, _ = train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), share)
    file = f"{folder}/{hvd.rank()}.keras"
    model.save(file)
    plain = keras.models.load_model(file)
    assert not hasattr(plain.optimizer, "_slipstream")
    again = hvd.load_model(file)
    assert hasattr(again.optimizer, "_slipstream")
    x, y = data()
    mine = slice(share[0] * 12, share[0] * 12 + 12)
    again.fit(x[mine], y[mine], batch_size=4, epochs=1, verbose=0)
    assert_equal_on_all(again)


def check_best_model(folder: str) -> None:
    share = hvd.rank(), hvd.size()
    best = hvd.callbacks.BestModelCheckpoint(f"{folder}/best-{hvd.rank()}.keras", monitor="loss")
    train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), share, [best])
    assert Path(f"{folder}/best-{hvd.rank()}.keras").exists() == (hvd.rank() == 0)


def check_elastic_state() -> None:
    elastic = hvd.elastic
    model, _ = train(keras.optimizers.SGD(0.1), (hvd.rank(), hvd.size()), seed=hvd.rank())
    state = elastic.KerasState(model, epoch=0, batch=0)
    state.sync()
    assert_equal_on_all(model)
    before = [one.copy() for one in weights(model)]
    x, y = data()
    callbacks = [elastic.UpdateEpochStateCallback(state), elastic.UpdateBatchStateCallback(state)]
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=callbacks)
    assert (state.epoch, state.batch) == (1, 0)
    state.restore()
    assert state.epoch == 0
    for one, other in zip(weights(model), before, strict=True):
        np.testing.assert_array_equal(one, other)
    model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=1,
        verbose=0,
        callbacks=[*callbacks, elastic.CommitStateCallback(state, 2)],
    )
    after = [one.copy() for one in weights(model)]
    state.restore()
    for one, other in zip(weights(model), after, strict=True):
        np.testing.assert_array_equal(one, other)


def check_lost() -> None:
    """A rank that is killed amid ``fit``: the others raise, and the text names it."""

    class Die(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if hvd.rank() == 1 and batch == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(Exception, match="rank 1"):
        train(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), (hvd.rank(), hvd.size()), [Die()], epochs=500
        )


def check_in_parts() -> None:
    """With TensorFlow gradients are handed over while backward makes the others: the weights are the same."""
    from slipstream.faces.arrays.gradients import Exchange
    from slipstream.faces.tensorflow import parts

    given: list[list[int]] = []
    give = Exchange.give

    def noted(self: Any, numbers: Any, arrays: Any) -> None:
        given.append(list(numbers))
        give(self, numbers, arrays)

    def trained() -> Any:
        share = hvd.rank(), hvd.size()
        return train(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), share, jit_compile=False)[0]

    whole = weights(trained())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Exchange, "give", noted)
        patched.setattr(parts, "_PART_BYTES", 1)
        model = trained()
    steps = 2 * EXAMPLES // BATCH
    assert len(given) > steps
    assert sorted(number for one in given for number in one) == sorted([0, 1, 2, 3] * steps)
    assert_equal_on_all(model)
    for one, other in zip(weights(model), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


CHECKS = [
    check_same_as_one,
    check_joins_first,
    check_late_build,
    check_kinds,
    check_kinds_of_reductions,
    check_accumulation,
    check_mixed_precision,
    check_operations,
    check_mistakes,
    check_rates,
    check_partial,
    check_elastic_state,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(ranks: Any, check: Any) -> None:
    ranks(check)


@pytest.mark.parametrize("ranks", ["tensorflow"], indirect=True)
def test_gradients_in_parts(ranks: Any) -> None:
    ranks(check_in_parts)


def test_saving(ranks: Any, tmp_path: Path) -> None:
    ranks(check_saving, str(tmp_path))


def test_the_best_model(ranks: Any, tmp_path: Path) -> None:
    ranks(check_best_model, str(tmp_path))


def test_a_rank_that_is_killed(ranks: Any) -> None:
    ranks(check_lost, dying=[1])
