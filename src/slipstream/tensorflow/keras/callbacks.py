"""That of `slipstream.keras.callbacks`, or of `slipstream.tf_keras.callbacks` where ``tf.keras`` is legacy Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.faces.arrays.keras_kinds import legacy_is_chosen

if TYPE_CHECKING or not legacy_is_chosen():
    from slipstream.keras.callbacks import *  # noqa: F403
    from slipstream.keras.callbacks import __all__ as __all__
else:
    from slipstream.tf_keras.callbacks import *  # noqa: F403
    from slipstream.tf_keras.callbacks import __all__ as __all__
