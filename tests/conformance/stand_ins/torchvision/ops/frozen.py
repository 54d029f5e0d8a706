"""A normalization whose statistics do not change."""

from torch import nn

__all__ = ["FrozenBatchNorm2d"]


class FrozenBatchNorm2d(nn.Module):
    """Only its name: the programs ask whether a module is one."""
