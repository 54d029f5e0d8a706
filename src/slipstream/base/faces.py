"""Which faces a program uses, as far as their modules tell."""

from __future__ import annotations

import sys

__all__ = ["JOINING", "faces_in_use"]

# What a program calls, and the module that is loaded then.
_MODULES = {
    "slipstream.torch": "slipstream.faces.torch",
    "torch.distributed": "slipstream.faces.torch_distributed.group",
    "slipstream.tf_keras": "slipstream.faces.tensorflow.legacy_keras",
    **{
        f"slipstream.{face}": f"slipstream.faces.{face}"
        for face in ("tensorflow", "keras", "jax", "mxnet", "lightgbm", "ray")
    },
}
JOINING = frozenset(f"slipstream.{face}" for face in ("torch", "tensorflow", "keras", "tf_keras"))
"""Faces that have `hvd.join`."""


def faces_in_use() -> list[str]:
    """Those that this process has loaded."""
    return [face for face, module in _MODULES.items() if module in sys.modules]
