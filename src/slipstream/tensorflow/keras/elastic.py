"""That of `slipstream.keras.elastic`, or of `slipstream.tf_keras.elastic` where ``tf.keras`` is legacy Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.faces.arrays.keras_kinds import legacy_is_chosen

if TYPE_CHECKING or not legacy_is_chosen():
    from slipstream.keras.elastic import *  # noqa: F403
    from slipstream.keras.elastic import __all__ as __all__
else:
    from slipstream.tf_keras.elastic import *  # noqa: F403
    from slipstream.tf_keras.elastic import __all__ as __all__
