"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slipstream.faces.arrays.keras_kinds import legacy_is_chosen
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.tensorflow.reductions import allreduce

__all__ = ["SyncBatchNormalization"]


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """tf.keras.layers.BatchNormalization whose mean and variance are those of the batches of all ranks together.

    Arguments are those of BatchNormalization, and ``process_set``. All ranks must bring equally many examples.

    >>> layer = hvd.SyncBatchNormalization(momentum=0.9)
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        kwargs.pop("fused", None)  # of legacy Keras, whose fused operation asks nobody for mean and variance
        if legacy_is_chosen():
            kwargs["fused"] = False
        super().__init__(*args, **kwargs)
        self._process_set = process_set

    def _moments(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(*args, **kwargs)
        if not self._process_set.included() or self._process_set.size() == 1:
            return mean, variance
        # Var[X] = E[X^2] - E[X]^2, where both are means over equally large batches.
        told = allreduce(tf.stack([mean, variance + tf.square(mean)]), process_set=self._process_set)
        mean, squares = tf.unstack(told)
        return mean, squares - tf.square(mean)
