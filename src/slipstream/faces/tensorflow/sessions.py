"""For programs of TensorFlow 1: its optimizers, all global variables, and the hook that broadcasts these."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slipstream.faces.tensorflow.gradients import ReduceGradients
from slipstream.faces.tensorflow.movement import broadcast_variables

__all__ = ["BroadcastGlobalVariablesHook", "broadcast_global_variables", "wrap_session_optimizer"]


def broadcast_global_variables(root_rank: int) -> Any:
    """An operation that gives all ranks all global variables of ``root_rank``; RuntimeError where TensorFlow is eager.

    >>> with tf.Graph().as_default():
    ...     _ = tf.compat.v1.get_variable("x", [1])
    ...     operation = hvd.broadcast_global_variables(0)
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """For tf.compat.v1.train.MonitoredTrainingSession: gives all ranks the variables of ``root_rank`` at its start.

    ``device`` is accepted and changes nothing.

    >>> hook = hvd.BroadcastGlobalVariablesHook(0)
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        """Adds the operation to the graph."""
        if self.bcast_op is None or self.bcast_op.graph != tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: object) -> None:
        """Runs it."""
        session.run(self.bcast_op)


class _Distributed(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer of TensorFlow 1 whose gradients are reduced in ``compute_gradients``."""

    def __init__(self, optimizer: Any, name: str, reduce: ReduceGradients) -> None:
        super().__init__(name=name, use_locking=False)
        self._optimizer = optimizer
        self._reduce = reduce

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of reduced gradient and variable; arguments are those of the wrapped optimizer."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [one for one, _ in pairs], [one for _, one in pairs]
        return list(zip(self._reduce(grads, variables), variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """That of the wrapped optimizer."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """That of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def wrap_session_optimizer(optimizer: Any, name: str | None, reduce: ReduceGradients) -> Any:
    """An optimizer of tf.compat.v1.train that reduces gradients before it applies them."""
    return _Distributed(optimizer, name or f"Distributed{type(optimizer).__name__}", reduce)
