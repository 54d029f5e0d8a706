"""Data sets of the shapes of MNIST, CIFAR and ImageNet, made of scikit-learn's digits."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

__all__ = ["CIFAR10", "CIFAR100", "MNIST", "ImageFolder"]

TRAINING = 1500  # of 1797 digits; the rest are for tests
MOST = int(os.environ.get("PROGRAM_IMAGES", "1797"))  # in a data set


class Digits(Dataset):
    """Pairs of an image, as an array of bytes (rows, columns[, channels]), and its class."""

    scale, border, channels = 3, 2, 0

    def __init__(self, root: str, train: bool = True, transform: Any = None, **_: Any) -> None:
        found = load_digits()
        first, last = (0, TRAINING) if train else (TRAINING, len(found.target))
        chosen = slice(first, min(last, first + MOST))
        images = np.kron(found.images[chosen] * 255 / 16, np.ones((1, self.scale, self.scale)))
        images = np.pad(images, ((0, 0), (self.border, self.border), (self.border, self.border)))
        if self.channels:
            images = np.repeat(images[..., None], self.channels, axis=-1)
        self.data = images.astype(np.uint8)
        self.targets = found.target[chosen].tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.data[index]
        return (self.transform(image) if self.transform else image), self.targets[index]


class MNIST(Digits):
    """28 x 28, one channel."""


class CIFAR10(Digits):
    """32 x 32, three channels."""

    scale, border, channels = 4, 0, 3


class CIFAR100(CIFAR10):
    """As CIFAR10: only ten of the classes occur."""


class ImageFolder(CIFAR10):
    """As CIFAR10; a folder whose name ends in "val" has the images for tests."""

    def __init__(self, root: str, transform: Any = None, **_: Any) -> None:
        super().__init__(root, not root.endswith("val"), transform)
