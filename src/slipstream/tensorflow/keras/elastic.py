"""That of `slipstream.keras.elastic`."""

from __future__ import annotations

from slipstream.keras.elastic import *  # noqa: F403
from slipstream.keras.elastic import __all__ as __all__
