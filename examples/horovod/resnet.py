"""Residual networks for the examples of this folder (He et al., 2015), without torchvision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

# blocks of each of the four stages, and channels of the first
SHAPES = {"small": ((1, 1, 1, 1), 8), "resnet50": ((3, 4, 6, 3), 64), "resnet101": ((3, 4, 23, 3), 64)}


class Bottleneck(nn.Module):
    """Three convolutions beside a short cut; ``width`` channels inside, four times as many outside."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != 4 * width:
            convolution = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, h, w) becomes (batch, 4 * width, h / stride, w / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def resnet(shape: str, classes: int) -> nn.Sequential:
    """A network of one of the `SHAPES` for images (batch, 3, h, w); gives logits (batch, classes)."""
    blocks, width = SHAPES[shape]
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = width
    for stage, count in enumerate(blocks):
        for number in range(count):
            inside = width << stage
            layers.append(Bottleneck(channels, inside, 2 if stage and not number else 1))
            channels = 4 * inside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
