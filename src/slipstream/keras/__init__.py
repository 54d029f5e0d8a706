"""The Horovod API for Keras 3 on its back ends: ``import slipstream.keras as hvd``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slipstream.faces.horovod.absent import hint

try:
    from slipstream.faces.keras import *  # noqa: F403
    from slipstream.faces.keras import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "keras":
        raise
    text = "slipstream.keras needs Keras 3: pip install keras, or pip install '.[keras]' in the clone of slipstream"
    raise ModuleNotFoundError(text, name="keras") from None

from slipstream.keras import callbacks as callbacks

if TYPE_CHECKING:
    from slipstream.keras import elastic as elastic
else:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name == "elastic":  # loaded by those that use it
            return importlib.import_module("slipstream.keras.elastic")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint(name, __all__)}")
