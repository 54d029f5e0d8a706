"""The Horovod API for PyTorch: ``import slipstream.torch as hvd``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slipstream.faces.horovod.absent import hint

try:
    from slipstream.faces.torch import *  # noqa: F403
    from slipstream.faces.torch import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    text = "slipstream.torch needs PyTorch: pip install torch, or pip install '.[torch]' in the clone of slipstream"
    raise ModuleNotFoundError(text, name="torch") from None


if TYPE_CHECKING:
    from slipstream.torch import elastic as elastic
else:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name == "elastic":  # loaded by those that use it
            return importlib.import_module("slipstream.torch.elastic")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint(name, __all__)}")
