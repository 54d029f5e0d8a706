"""Horovod's API for Keras on TensorFlow: that of `slipstream.keras`."""

from __future__ import annotations

from slipstream.keras import *  # noqa: F403
from slipstream.keras import __all__ as __all__
from slipstream.tensorflow.keras import callbacks as callbacks
from slipstream.tensorflow.keras import elastic as elastic
