"""Networks: each is a function (num_classes=...) -> nn.Module."""

from zosam.lab.models.deit import deit_small, deit_tiny
from zosam.lab.models.digits_net import digits_net
from zosam.lab.models.registry import MODELS, NETWORKS, build, fits, sizes
from zosam.lab.models.resnet import resnet50, resnet50_cifar
from zosam.lab.models.resnet_cifar import resnet20, resnet32, resnet32_he, resnet56
from zosam.lab.models.wide_resnet import wrn, wrn28_10

__all__ = [
    "MODELS",
    "NETWORKS",
    "build",
    "deit_small",
    "deit_tiny",
    "digits_net",
    "fits",
    "resnet20",
    "resnet32",
    "resnet32_he",
    "resnet50",
    "resnet50_cifar",
    "resnet56",
    "sizes",
    "wrn",
    "wrn28_10",
]
