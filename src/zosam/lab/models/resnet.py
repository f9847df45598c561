"""ResNet-50, for ImageNet and with the small stem for CIFAR; the names of its weights are torchvision's."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from zosam.lab.models.blocks import Bottleneck, he_init


def stage(inside: int, width: int, count: int, stride: int) -> nn.Sequential:
    """`count` bottleneck blocks of one width; the first of them changes the size."""
    first = Bottleneck(inside, width, stride)
    return nn.Sequential(first, *(Bottleneck(4 * width, width) for _ in range(count - 1)))


class ResNet50(nn.Module):
    """Stem, 16 bottleneck blocks in four stages, global pooling, linear."""

    def __init__(self, num_classes: int, *, small: bool) -> None:
        super().__init__()
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(3, 64, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool: nn.Module = nn.Identity() if small else nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = stage(64, 64, count=3, stride=1)
        self.layer2 = stage(256, 128, count=4, stride=2)
        self.layer3 = stage(512, 256, count=6, stride=2)
        self.layer4 = stage(1024, 512, count=3, stride=2)
        self.fc = nn.Linear(2048, num_classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        logits: Tensor = self.fc(out.mean((2, 3)))
        return logits


def resnet50_cifar(num_classes: int = 10) -> ResNet50:
    """ResNet-50 for CIFAR: 3 x 3 stem, no max-pooling, 23.5 million weights."""
    return ResNet50(num_classes, small=True)


def resnet50(num_classes: int = 1000) -> ResNet50:
    """ResNet-50 for ImageNet: 7 x 7 stem, 25.6 million weights."""
    return ResNet50(num_classes, small=False)
