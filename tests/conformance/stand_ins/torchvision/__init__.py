"""As much of torchvision as the programs use: data sets of digits, no augmentation, one small network."""

from torchvision import datasets, models, transforms

__all__ = ["datasets", "models", "transforms"]
