"""Which Keras a program uses: Keras 3, or legacy Keras (`tf_keras`). Loads neither."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["is_legacy", "legacy_is_chosen"]


def legacy_is_chosen() -> bool:
    """Whether ``tf.keras`` is legacy Keras, as TensorFlow decides it."""
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("true", "True", "1")


def is_legacy(thing: Any) -> bool:
    """Whether an optimizer, a layer or a model is one of legacy Keras."""
    loaded: Any = sys.modules.get("tf_keras")
    if loaded is None:
        return False
    optimizers = loaded.optimizers
    return isinstance(thing, (loaded.layers.Layer, optimizers.Optimizer, optimizers.legacy.Optimizer))
