"""LightGBM on slipstream (public path: `slipstream.lightgbm`)."""

from __future__ import annotations

from slipstream.faces.lightgbm.network import network

__all__ = ["network"]
