"""Horovod's callbacks for ``model.fit`` of legacy Keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from slipstream.faces.arrays.keras_callbacks import (
    AveragesMetrics,
    BroadcastsVariables,
    SavesBestModel,
    SchedulesRate,
    WarmsUpRate,
)
from slipstream.faces.tensorflow.movement import broadcast_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(BroadcastsVariables, tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the weights and the optimizer's variables of ``root_rank`` before the first batch.

    After the first batch if the model is built no sooner. ``device`` is accepted and changes nothing.
    ``local_variables``: those that each rank keeps.

    >>> callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts, if that was not done before."""
        self._broadcast_once()

    def _broadcast(self) -> None:
        optimizer = getattr(self.model, "optimizer", None)
        found = list(self.model.weights)
        if optimizer is not None:
            _build(optimizer, self.model.trainable_variables)
            made = optimizer.variables
            found += made() if callable(made) else made
        operation = broadcast_variables(self._shared(found), self.root_rank, self._process_set)
        if not tf.executing_eagerly():
            tf_keras.backend.get_session().run(operation)


def _build(optimizer: Any, variables: Any) -> None:
    """Has the optimizer make its variables, which it else does in the first step."""
    if not variables:
        return
    if hasattr(optimizer, "build"):
        with tf.init_scope():
            optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)


class MetricAverageCallback(AveragesMetrics, tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over all ranks, for the callbacks that come after it.

    ``device`` is accepted and changes nothing.

    >>> callback = hvd.callbacks.MetricAverageCallback()
    """


class _Rate:
    """The learning rate of a model of legacy Keras, and the momentum of legacy optimizers.

    Where the learning rate changes, the velocity that SGD has gathered is of the old one: the momentum is scaled for
    the one step (Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677, remark 2).
    """

    model: Any
    momentum_correction: bool
    _momentum: float | None = None  # while another one is set

    def _set_rate(self, rate: float) -> None:
        optimizer = self.model.optimizer
        before = self._rate()
        optimizer.learning_rate = rate
        hyper = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_hyper", {})
        if self.momentum_correction and "momentum" in hyper and before:
            self._momentum = float(tf_keras.backend.get_value(optimizer.momentum))
            optimizer.momentum = self._momentum * rate / before

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sets the momentum back."""
        if self._momentum is not None:
            self.model.optimizer.momentum = self._momentum
            self._momentum = None

    def _rate(self) -> float:
        return float(tf_keras.backend.get_value(self.model.optimizer.learning_rate))


class LearningRateScheduleCallback(_Rate, SchedulesRate, tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to ``initial_lr`` times a multiplier, from one epoch on and up to another.

    ``multiplier``: a number, to the power of the epochs since ``start_epoch``, or a function of the epoch.
    ``staircase``: it changes with epochs, else with every batch, for which the epoch is no whole number;
    ``steps_per_epoch`` is needed then where Keras does not know it. ``momentum_correction``: where the learning rate
    changes, the momentum is scaled with it for one step; only `tf_keras.optimizers.legacy.SGD` lets it.
    ValueError without ``initial_lr``.

    >>> callback = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.5, start_epoch=3)
    """


class LearningRateWarmupCallback(_Rate, WarmsUpRate, tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from ``initial_lr`` divided by the number of ranks to ``initial_lr``, batch by batch.

    ``initial_lr`` is that for all ranks (Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677).
    ``verbose``: rank 0 says when it is there. Otherwise as `LearningRateScheduleCallback`.

    >>> callback = hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=3)
    """


class BestModelCheckpoint(SavesBestModel, tf_keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """tf_keras.callbacks.ModelCheckpoint that keeps the best model; only rank 0 writes it.

    ``monitor`` and what follows: as of ModelCheckpoint. Put a `MetricAverageCallback` before it.

    >>> callback = hvd.callbacks.BestModelCheckpoint("best.keras", monitor="loss")
    """
