"""Models, under the names of the large ones."""

from torchvision.models import resnet
from torchvision.models.resnet import resnet18, resnet34, resnet50

__all__ = ["resnet", "resnet18", "resnet34", "resnet50"]
