"""Horovod's elastic training: ``import slipstream.tensorflow as hvd``, then ``hvd.elastic.run``."""

from __future__ import annotations

import importlib
from typing import Any

from slipstream.faces.arrays.keras_elastic import ModelState, run
from slipstream.faces.arrays.keras_kinds import is_legacy
from slipstream.faces.horovod.elastic import HostsUpdatedInterrupt, ObjectState, State
from slipstream.faces.tensorflow.elastic import TensorFlowState, arrays_of
from slipstream.faces.tensorflow.movement import broadcast_variables

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowKerasState(ModelState):
    """What training goes back to after a failure: a model of Keras 3 or of legacy Keras, its optimizer, other objects.

    ``optimizer``: that of the model by default. Both must be built. Further keywords become attributes, such as
    ``epoch`` and ``batch``.

    >>> state = hvd.elastic.TensorFlowKerasState(model, epoch=0, batch=0)
    >>> state.commit()
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: object = None, **kwargs: Any) -> None:
        broadcast: Any = broadcast_variables
        arrays: Any = arrays_of
        if not is_legacy(model):
            broadcast = importlib.import_module("slipstream.keras").broadcast_variables
            arrays = importlib.import_module("slipstream.faces.keras.backends").variable_arrays
        super().__init__(model, optimizer, broadcast, arrays, **kwargs)
