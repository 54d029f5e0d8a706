"""One small residual network, under the names of the large ones, for images of three channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["BasicBlock", "resnet18", "resnet34", "resnet50"]


def _convolution(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)]


class BasicBlock(nn.Module):
    """Two convolutions, to which their input is added: as it is, or as ``downsample`` makes it."""

    def __init__(
        self, inputs: int, outputs: int, stride: int = 1, downsample: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_convolution(inputs, outputs, stride), nn.ReLU())
        self.layers.extend(_convolution(outputs, outputs, 1))
        self.downsample = downsample or nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(images) + self.downsample(images))


def resnet18(num_classes: int = 1000, **_: Any) -> nn.Module:
    """A convolution, a block, a convolution, and a linear layer."""
    layers = [*_convolution(3, 8, 2), nn.ReLU(), BasicBlock(8, 8), *_convolution(8, 16, 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * 16, num_classes))


resnet34 = resnet50 = resnet18
