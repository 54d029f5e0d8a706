"""Gradient tapes, sessions and states of TensorFlow, on two and three ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream  # noqa: E402
import slipstream.tensorflow as hvd  # noqa: E402


def train(wrap: Any, in_graph: bool, rank: int, size: int, steps: int = 5) -> list[Any]:
    """Weights of a small model after some steps of SGD on this rank's share of 12 examples."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(12, 4)).astype(np.float32)[rank::size]
    y = generator.normal(size=(12, 2)).astype(np.float32)[rank::size]
    weights = [tf.Variable(tf.ones([4, 3]) * 0.3), tf.Variable(tf.zeros([3])), tf.Variable(tf.ones([3, 2]))]

    def step() -> None:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(x @ weights[0] + weights[1])
            loss = tf.reduce_mean((hidden @ weights[2] - y) ** 2)
        for weight, grad in zip(weights, wrap(tape).gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * grad)

    run = tf.function(step) if in_graph else step
    for _ in range(steps):
        run()
    return [one.numpy() for one in weights]


def check_tape() -> None:
    want = train(lambda tape: tape, False, 0, 1)
    variants: list[dict[str, Any]] = [
        {},
        {"groups": 2},
        {"gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.bf16},
        {"compression": hvd.Compression.fp16},
    ]
    for in_graph in (False, True):
        for options in variants:
            got = train(
                lambda tape, o=options: hvd.DistributedGradientTape(tape, **o),
                in_graph,
                hvd.rank(),
                hvd.size(),
            )
            for one, other in zip(got, want, strict=True):
                loose = "compression" in options
                np.testing.assert_allclose(
                    one, other, rtol=0.05 if loose else 1e-4, atol=0.02 if loose else 1e-5
                )
            assert all(np.array_equal(got[0], one) for one in hvd.allgather_object(got[0])), options


def check_own_compressor() -> None:
    class Halves(hvd.Compressor):
        @staticmethod
        def compress(tensor: Any) -> Any:
            return tf.cast(tensor, tf.float16), tensor.dtype

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tf.cast(tensor, ctx)

    x = tf.Variable([1.0, 2.0])
    for _ in range(2):
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=Halves, op=hvd.Sum) as tape:
            y = tf.reduce_sum(x * (hvd.rank() + 1.0))
        np.testing.assert_allclose(tape.gradient(y, x), np.full(2, sum(range(1, hvd.size() + 1))))


def check_sources() -> None:
    """One source, dicts, None, and sources that stay on their rank."""
    rank, size = hvd.rank(), hvd.size()
    a, b, c = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(3.0)
    mean = (size + 1) / 2

    def tape_of(**options: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True), **options) as tape:
            y = (a + b) * (rank + 1.0)
        return tape, y

    tape, y = tape_of()
    assert isinstance(tape, tf.GradientTape)
    assert tape.gradient(y, a).numpy() == mean
    got = tape.gradient(y, {"a": a, "of c": [c]})
    assert got["a"].numpy() == mean
    assert got["of c"] == [None]
    for scale in (False, True):
        tape, y = tape_of(scale_local_gradients=scale)
        tape.register_local_source(b)
        got = tape.gradient(y, [a, b])
        assert got[0].numpy() == mean
        assert got[1].numpy() == pytest.approx((rank + 1) / (size if scale else 1))
    local, shared = tape.get_local_and_global_gradients(y, [a, b])
    assert [one[0] is b for one in local] == [True]
    assert [one[0] is a for one in shared] == [True]


def check_sparse() -> None:
    rank, size = hvd.rank(), hvd.size()
    table = tf.Variable(tf.ones([size + 1, 2]))
    want = np.zeros((size + 1, 2))
    for r in range(size):
        want[[r, r + 1]] += 1 / size

    def gradient(as_dense: bool) -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.gather(table, [rank, rank + 1]))
        return hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense).gradient(y, table)

    for call in (gradient, tf.function(gradient)):
        slices = call(False)
        assert isinstance(slices, tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(slices), want)
        dense = call(True)
        assert not isinstance(dense, tf.IndexedSlices)
        np.testing.assert_allclose(dense, want)


def check_different_sources() -> None:
    x = tf.Variable(tf.ones([3 + hvd.rank()]))
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        y = tf.reduce_sum(x)
    with pytest.raises(slipstream.Mismatch, match="shape"):
        tape.gradient(y, x)


def check_sessions() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=tf.constant([1.0 + hvd.rank()]))
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        train_op = optimizer.minimize(tf.reduce_sum(x * (hvd.rank() + 1.0)), global_step=step)
        read = x.read_value()
        hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=3)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            value = None
            while not session.should_stop():
                session.run(train_op)
                if not session.should_stop():
                    value = session.run(read)
        found = hvd.allgather_object(np.asarray(value).tolist())
    assert all(one == found[0] for one in found), found
    assert found[0][0] < 1.0
    with pytest.raises(RuntimeError, match="eager"):
        hvd.broadcast_global_variables(0)


def check_states() -> None:
    x = tf.Variable([float(hvd.rank())])
    state = hvd.elastic.TensorFlowState([x], batch=hvd.rank())
    state.sync()
    assert (x.numpy().tolist(), state.batch) == ([0.0], 0)
    x.assign([5.0])
    state.batch = 5
    state.restore()
    assert (x.numpy().tolist(), state.batch) == ([0.0], 0)
    x.assign([6.0])
    state.commit()
    x.assign([7.0])
    state.restore()
    assert x.numpy().tolist() == [6.0]

    @hvd.elastic.run
    def run(state: Any) -> int:
        state.batch += 1
        return int(state.batch)

    assert run(state) == 1


def check_sync_batch_norm() -> None:
    rank, size = hvd.rank(), hvd.size()
    x = np.random.default_rng(1).normal(size=(4 * size, 3)).astype(np.float32)
    whole, part = tf.keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    want = whole(x, training=True).numpy()[4 * rank : 4 * rank + 4]
    got = part(x[4 * rank : 4 * rank + 4], training=True)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(part.moving_variance, whole.moving_variance, rtol=1e-4)


CHECKS = [
    check_tape,
    check_own_compressor,
    check_sources,
    check_sparse,
    check_sessions,
    check_states,
    check_sync_batch_norm,
    check_different_sources,
]


@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(ranks: Any, check: Any) -> None:
    ranks(check)
