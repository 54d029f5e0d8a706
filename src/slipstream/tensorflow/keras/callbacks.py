"""That of `slipstream.keras.callbacks`."""

from __future__ import annotations

from slipstream.keras.callbacks import *  # noqa: F403
from slipstream.keras.callbacks import __all__ as __all__
