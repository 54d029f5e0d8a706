"""A small network without normalization and drop-out: what it learns does not depend on how a batch is shared."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["vgg11"]


def vgg11(num_classes: int = 1000, **_: Any) -> nn.Module:
    """A convolution and a linear layer, for images of 32 x 32 with three channels."""
    layers = [nn.Conv2d(3, 16, 4, 4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * 64, num_classes))
