"""Transforms: those that would change the size of an image, or augment it, leave it as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch

__all__ = [
    *(
        "CenterCrop",
        "ColorJitter",
        "Compose",
        "Grayscale",
        "InterpolationMode",
        "Normalize",
        "Pad",
        "RandomCrop",
        "RandomHorizontalFlip",
        "RandomResizedCrop",
        "Resize",
    ),
    "ToTensor",
]

Transform = Callable[[Any], Any]


class InterpolationMode(Enum):
    """How an image of another size is made."""

    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Compose:
    """One transform after another."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """From bytes (rows, columns[, channels]), or a picture, to float32 in 0..1 (channels, rows, columns)."""

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.atleast_3d(np.array(image))).permute(2, 0, 1).float() / 255


class Normalize:
    """By the mean and the standard deviation of each channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self.mean) / self.std


class Unchanged:
    """What leaves an image as it is."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, image: Any) -> Any:
        return image


CenterCrop = ColorJitter = Grayscale = Pad = RandomCrop = RandomHorizontalFlip = RandomResizedCrop = (
    Resize
) = Unchanged
