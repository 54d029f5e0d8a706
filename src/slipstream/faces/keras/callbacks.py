"""Horovod's callbacks for ``model.fit``, on all back ends of Keras 3."""

from __future__ import annotations

from typing import Any

import keras

from slipstream.faces.arrays.keras_callbacks import (
    AveragesMetrics,
    BroadcastsVariables,
    SavesBestModel,
    SchedulesRate,
    WarmsUpRate,
)
from slipstream.faces.keras.operations import broadcast_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(BroadcastsVariables, keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the weights and the optimizer's variables of ``root_rank`` before the first batch.

    After the first batch if the model is not built before on all ranks: on TensorFlow, one without an `Input`.
    ``device`` is accepted and changes nothing. ``local_variables``: those that
    each rank keeps. Seeds of dropout stay those of each rank.

    >>> callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    """

    _may_be_late = keras.backend.backend() == "tensorflow"  # others build the model before

    if _may_be_late:  # elsewhere Keras would wait for the results of each batch before the next one

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Broadcasts, if that was not done before."""
            self._broadcast_once()

    def _broadcast(self) -> None:
        found = self._shared(self.model.weights)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            if not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            found += self._shared(optimizer.variables)
        broadcast_variables(found, self.root_rank, self._process_set)


class MetricAverageCallback(AveragesMetrics, keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over all ranks, for the callbacks that come after it.

    ``device`` is accepted and changes nothing.

    >>> callback = hvd.callbacks.MetricAverageCallback()
    """


class _Rate:
    """The learning rate of a model of Keras 3."""

    model: Any

    def _set_rate(self, rate: float) -> None:
        sync = getattr(self.model, "jax_state_sync", None)
        if sync is not None:  # on JAX the variables hold the state only between steps that are synchronised
            sync()
        self.model.optimizer.learning_rate = rate

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))


class LearningRateScheduleCallback(_Rate, SchedulesRate, keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to ``initial_lr`` times a multiplier, from one epoch on and up to another.

    ``multiplier``: a number, to the power of the epochs since ``start_epoch``, or a function of the epoch.
    ``staircase``: it changes with epochs, else with every batch, for which the epoch is no whole number;
    ``steps_per_epoch`` is needed then where Keras does not know it. ``momentum_correction`` is accepted and changes
    nothing: Keras 3 compiles the momentum into the step. ValueError without ``initial_lr``.

    >>> callback = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.5, start_epoch=3)
    """


class LearningRateWarmupCallback(_Rate, WarmsUpRate, keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from ``initial_lr`` divided by the number of ranks to ``initial_lr``, batch by batch.

    ``initial_lr`` is that for all ranks (Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677).
    ``verbose``: rank 0 says when it is there. Otherwise as `LearningRateScheduleCallback`.

    >>> callback = hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=3)
    """


class BestModelCheckpoint(SavesBestModel, keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """keras.callbacks.ModelCheckpoint that keeps the best model; only rank 0 writes it.

    ``monitor`` and what follows: as of ModelCheckpoint. Put a `MetricAverageCallback` before it.

    >>> callback = hvd.callbacks.BestModelCheckpoint("best.keras", monitor="loss")
    """
