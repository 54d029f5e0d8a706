"""Operators. What torchvision has in `torchvision.ops.misc` is in `frozen`."""

import sys

from torchvision.ops import frozen

__all__ = ["frozen"]
sys.modules["torchvision.ops.misc"] = frozen
