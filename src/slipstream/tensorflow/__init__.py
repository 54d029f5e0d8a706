"""The Horovod API for TensorFlow: ``import slipstream.tensorflow as hvd``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slipstream.faces.horovod.absent import hint

try:
    from slipstream.faces.tensorflow import *  # noqa: F403
    from slipstream.faces.tensorflow import __all__ as _of_face
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    text = (
        "slipstream.tensorflow needs TensorFlow: pip install tensorflow-cpu, or pip install '.[tensorflow]' in the "
        "clone of slipstream"
    )
    raise ModuleNotFoundError(text, name="tensorflow") from None

from slipstream.tensorflow.optimizers import DistributedOptimizer

__all__ = [*_of_face, "DistributedOptimizer", "SyncBatchNormalization"]

_LATER = ("distribute", "elastic", "keras")  # loaded by those that use them

if TYPE_CHECKING:
    from slipstream.faces.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
    from slipstream.tensorflow import distribute as distribute
    from slipstream.tensorflow import elastic as elastic
    from slipstream.tensorflow import keras as keras
else:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            return importlib.import_module(f"slipstream.tensorflow.{name}")
        if name == "SyncBatchNormalization":  # it needs Keras
            return importlib.import_module(
                "slipstream.faces.tensorflow.sync_batch_norm"
            ).SyncBatchNormalization
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint(name, __all__)}")
