"""LightGBM's distributed training on slipstream: ``with slipstream.lightgbm.network() as parallel:``."""

from __future__ import annotations

try:
    from slipstream.faces.lightgbm import *  # noqa: F403
    from slipstream.faces.lightgbm import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "lightgbm":
        raise
    text = "slipstream.lightgbm needs LightGBM: pip install lightgbm"
    raise ModuleNotFoundError(text, name="lightgbm") from None
