"""The Horovod API for legacy Keras: ``import slipstream.tf_keras as hvd``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slipstream.faces.horovod.absent import hint

try:
    from slipstream.faces.tensorflow.legacy_keras import *  # noqa: F403
    from slipstream.faces.tensorflow.legacy_keras import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name not in ("tf_keras", "tensorflow"):
        raise
    text = (
        f"slipstream.tf_keras needs legacy Keras, and {error.name} is not installed: pip install tf-keras, in the "
        "version of TensorFlow"
    )
    raise ModuleNotFoundError(text, name=error.name) from None

from slipstream.tf_keras import callbacks as callbacks

if TYPE_CHECKING:
    from slipstream.tf_keras import elastic as elastic
else:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name == "elastic":  # loaded by those that use it
            return importlib.import_module("slipstream.tf_keras.elastic")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint(name, __all__)}")
