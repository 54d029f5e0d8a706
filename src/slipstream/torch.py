"""The Horovod API for PyTorch: ``import slipstream.torch as hvd``."""

from __future__ import annotations

from slipstream.faces.torch import *  # noqa: F403
from slipstream.faces.torch import __all__ as __all__
