"""Horovod's API for ``tf.keras``: that of `slipstream.keras`, or of `slipstream.tf_keras` where it is legacy Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.faces.arrays.keras_kinds import legacy_is_chosen

if TYPE_CHECKING or not legacy_is_chosen():
    from slipstream.keras import *  # noqa: F403
    from slipstream.keras import __all__ as __all__
else:
    from slipstream.tf_keras import *  # noqa: F403
    from slipstream.tf_keras import __all__ as __all__

from slipstream.tensorflow.keras import callbacks as callbacks
from slipstream.tensorflow.keras import elastic as elastic
