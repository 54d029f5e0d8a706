"""`tf.distribute` on slipstream: ``slipstream.tensorflow.distribute.Strategy``."""

from __future__ import annotations

from slipstream.faces.tensorflow.strategy import Strategy

__all__ = ["Strategy"]
