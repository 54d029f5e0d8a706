"""Horovod's elastic training: ``import slipstream.tensorflow as hvd``, then ``hvd.elastic.run``."""

from __future__ import annotations

from slipstream.faces.horovod.elastic import HostsUpdatedInterrupt, ObjectState, State
from slipstream.faces.keras.elastic import KerasState as TensorFlowKerasState
from slipstream.faces.keras.elastic import run
from slipstream.faces.tensorflow.elastic import TensorFlowState

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]
