"""Transforms: those that would change the size of an image, or augment it, leave it as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

__all__ = [
    *(
        "CenterCrop",
        "Compose",
        "Normalize",
        "RandomCrop",
        "RandomHorizontalFlip",
        "RandomResizedCrop",
        "Resize",
    ),
    "ToTensor",
]

Transform = Callable[[Any], Any]


class Compose:
    """One transform after another."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """From bytes (rows, columns[, channels]) to float32 in 0..1 (channels, rows, columns)."""

    def __call__(self, image: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.atleast_3d(image)).permute(2, 0, 1).float() / 255


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


CenterCrop = RandomCrop = RandomHorizontalFlip = RandomResizedCrop = Resize = Unchanged
