"""Models: one small network, with the layers of the large ones, under their names."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["resnet18", "resnet34", "resnet50"]


def resnet18(num_classes: int = 1000, **_: Any) -> nn.Module:
    """Convolutions, batch normalisation and a linear layer, for images of three channels."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 16)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * 16, num_classes))


resnet34 = resnet50 = resnet18
