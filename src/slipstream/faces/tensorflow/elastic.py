"""Elastic training of TensorFlow's variables (public path: `slipstream.tensorflow.elastic`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slipstream.faces.horovod.elastic import ObjectState
from slipstream.faces.horovod.job import rank
from slipstream.faces.horovod.objects import broadcast_object
from slipstream.faces.tensorflow.movement import broadcast_variables

__all__ = ["TensorFlowState", "arrays_of"]


def arrays_of(variables: Sequence[Any]) -> list[Any]:
    """The values of variables, as arrays that may be their memory."""
    return [np.asarray(one.numpy()) for one in variables]


class TensorFlowState(ObjectState):
    """What training goes back to after a failure: variables, and any other objects.

    ``variables``: a list of tf.Variable. Further keywords become attributes. `commit` keeps copies in memory,
    `restore` goes back to them, `sync` gives all ranks what rank 0 has. Works where TensorFlow is eager.

    >>> state = hvd.elastic.TensorFlowState([tf.Variable(1.0)], batch=0)
    >>> state.commit()
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: object = None, **kwargs: Any) -> None:
        if variables is None or not tf.executing_eagerly():
            raise ValueError("give the variables, such as model.variables; TensorFlow must be eager")
        self.variables = list(variables)
        self._values: list[Any] = []
        super().__init__(broadcast_object, rank, **kwargs)
        self._keep()

    def _keep(self) -> None:
        self._values = [one.copy() for one in arrays_of(self.variables)]

    def save(self) -> None:
        """Keeps copies of the variables and objects."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Goes back to the last copies."""
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the variables and objects of rank 0, and keeps copies of them; every rank calls it."""
        broadcast_variables(self.variables, 0)
        self._keep()
        super().sync()
