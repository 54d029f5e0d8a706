"""Models that are saved with operations that have no gradient."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import slipstream.tensorflow as hvd  # noqa: E402
from faces.rank_jobs import Ranks  # noqa: E402
from faces.tensorflow.conftest import QUIET, WORKER  # noqa: E402


class _Model(tf.Module):  # type: ignore[misc]
    def __init__(self, op: int) -> None:
        super().__init__()
        self._op = op

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        one, two = hvd.grouped_allreduce([x, 2 * x], op=self._op)
        rows = hvd.reducescatter(x, op=self._op) if self._op != hvd.Adasum else x
        return hvd.allreduce(x, op=self._op), one, two, rows


def check_saved(op: int) -> None:
    model, x = _Model(op), tf.constant([1.0, 2.0]) + hvd.rank()
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(model, folder)
        loaded = tf.saved_model.load(folder)
    for found, wanted in zip(loaded(x), model(x), strict=True):
        np.testing.assert_array_equal(found, wanted)
    v = tf.Variable(x)
    with tf.GradientTape(), pytest.raises(NotImplementedError, match="gradients flow through"):
        model(v)
    for result in range(3 if op == hvd.Adasum else 4):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = loaded(x)[result]
        with pytest.raises(tf.errors.InvalidArgumentError, match="gradients flow through Average and Sum"):
            tape.gradient(y, x)


class _Native(tf.Module):  # type: ignore[misc]
    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)


def check_saves(folder: str) -> None:
    tf.saved_model.save(_Native(), f"{folder}/{hvd.rank()}")


def check_loads(folder: str) -> None:
    loaded = tf.saved_model.load(f"{folder}/{hvd.rank()}")
    np.testing.assert_array_equal(loaded(tf.constant([1.0, 2.0])).numpy(), np.array([1, 2]) * hvd.size())


def test_a_new_process_loads_it(two: Ranks, tmp_path: Path) -> None:
    """It has made no operation before."""
    two(check_saves, str(tmp_path))
    others = Ranks(2, tmp_path, worker=WORKER, environment=QUIET)
    try:
        others(check_loads, str(tmp_path))
    finally:
        others.stop()


@pytest.mark.parametrize("way", ["two", "negotiated"])
@pytest.mark.parametrize("op", [hvd.Max, hvd.Adasum])
def test_saved(way: str, op: int, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(way)(check_saved, op)
