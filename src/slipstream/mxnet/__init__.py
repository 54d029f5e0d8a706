"""The Horovod API for MXNet 1.9: ``import slipstream.mxnet as hvd``, before ``import mxnet`` where NumPy is new."""

from __future__ import annotations

try:
    from slipstream.faces.mxnet import *  # noqa: F403
    from slipstream.faces.mxnet import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "mxnet":
        raise
    text = "slipstream.mxnet needs MXNet: pip install mxnet==1.9.1 'numpy<2'"
    raise ModuleNotFoundError(text, name="mxnet") from None
