"""What the examples of this folder train on: scans of handwritten digits, and a small network for them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import TensorDataset


def data_sets(dtype: torch.dtype = torch.float32) -> tuple[TensorDataset, TensorDataset]:
    """1437 images for training and 360 for the test, (1, 8, 8) each, with their labels; the same on every worker."""
    digits = load_digits()
    images = (digits.images / 16.0)[:, np.newaxis]
    split = train_test_split(images, digits.target, test_size=0.2, random_state=0, stratify=digits.target)
    train_x, test_x, train_y, test_y = (torch.from_numpy(array) for array in split)
    return TensorDataset(train_x.to(dtype), train_y), TensorDataset(test_x.to(dtype), test_y)


class Net(torch.nn.Module):
    """Two convolutions and two linear layers, for images (batch, 1, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = torch.nn.Linear(32 * 4 * 4, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, 10)."""
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)
