"""`DistributedOptimizer` of TensorFlow: of an optimizer of Keras 3, of legacy Keras, or of TensorFlow 1."""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from slipstream.faces.arrays.compression import AnyCompression, Compression
from slipstream.faces.arrays.keras_kinds import is_legacy
from slipstream.faces.horovod.process_sets import ProcessSet, global_process_set
from slipstream.faces.horovod.reduce_ops import Average
from slipstream.faces.tensorflow.gradients import ReduceGradients
from slipstream.faces.tensorflow.sessions import wrap_session_optimizer

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer so that it applies gradients that are reduced over the ranks.

    ``optimizer``: of Keras 3 (`slipstream.keras.DistributedOptimizer` says the rest), of legacy Keras
    (`slipstream.tf_keras.DistributedOptimizer`), or of tf.compat.v1.train, whose ``compute_gradients`` reduces then.
    ``use_locking`` and the devices are accepted, and change nothing; other arguments are those of
    `slipstream.keras.DistributedOptimizer`. Raises TypeError for anything else, ValueError for arguments that do not
    fit: optimizers of tf.compat.v1.train take no backward_passes_per_step above 1.

    >>> optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    """
    shared: dict[str, Any] = {
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "num_groups": num_groups,
        "groups": groups,
        "process_set": process_set,
    }
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if backward_passes_per_step != 1:
            raise ValueError(
                "backward_passes_per_step is for optimizers of Keras, not for those of tf.compat.v1.train"
            )
        return wrap_session_optimizer(optimizer, name, ReduceGradients(**shared))
    of_keras = importlib.import_module("slipstream.tf_keras" if is_legacy(optimizer) else "slipstream.keras")
    return of_keras.DistributedOptimizer(
        optimizer,
        name,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        scale_local_gradients=scale_local_gradients,
        **shared,
    )
