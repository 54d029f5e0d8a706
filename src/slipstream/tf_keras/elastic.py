"""Elastic training of models of legacy Keras."""

from __future__ import annotations

from slipstream.faces.arrays.keras_elastic import run
from slipstream.faces.horovod.elastic import HostsUpdatedInterrupt, ObjectState, State
from slipstream.faces.tensorflow.legacy_keras.elastic import (
    CommitStateCallback,
    KerasState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)

__all__ = [
    "CommitStateCallback",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
