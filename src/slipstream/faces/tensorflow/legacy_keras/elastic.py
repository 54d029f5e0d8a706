"""Elastic training of models of legacy Keras: their state, and callbacks that commit."""

from __future__ import annotations

from typing import Any

import tf_keras

from slipstream.faces.arrays.keras_elastic import CommitsState, ModelState, UpdatesBatch, UpdatesEpoch
from slipstream.faces.tensorflow.elastic import arrays_of
from slipstream.faces.tensorflow.movement import broadcast_variables

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]


class KerasState(ModelState):
    """What training goes back to after a failure: a model of legacy Keras, its optimizer, and any other objects.

    ``optimizer``: that of the model by default. The model must be built. Further keywords become attributes, such as
    ``epoch`` and ``batch``.

    >>> state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    >>> state.commit()
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: object = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, broadcast_variables, arrays_of, **kwargs)


class CommitStateCallback(CommitsState, tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the state after each ``batches_per_commit`` batches, and after each epoch.

    >>> callback = hvd.elastic.CommitStateCallback(state, batches_per_commit=10)
    """


class UpdateBatchStateCallback(UpdatesBatch, tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps ``state.batch``: the number of the next batch. The first epoch after a failure is shorter by it.

    >>> callback = hvd.elastic.UpdateBatchStateCallback(state)
    """


class UpdateEpochStateCallback(UpdatesEpoch, tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps ``state.epoch``: how many epochs have ended, failures and all.

    >>> callback = hvd.elastic.UpdateEpochStateCallback(state)
    """
