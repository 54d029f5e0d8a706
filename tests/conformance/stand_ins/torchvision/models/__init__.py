"""Models, under the names of the large ones."""

from torchvision.models import resnet, vgg
from torchvision.models.resnet import resnet18, resnet34, resnet50
from torchvision.models.vgg import vgg11

__all__ = ["resnet", "resnet18", "resnet34", "resnet50", "vgg", "vgg11"]
