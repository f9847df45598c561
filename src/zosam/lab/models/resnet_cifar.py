"""ResNets of depth 6n + 2 for 32 x 32 pictures: He's widths, and the wider variant behind the paper's tables."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from zosam.lab.models.blocks import Block, he_init


class CifarResNet(nn.Module):
    """A 3 x 3 stem, three stages of n blocks at full, half and quarter size, global pooling, linear."""

    def __init__(self, depth: int, width: int, num_classes: int, *, zero_pad: bool, stem_stride: int = 1) -> None:
        super().__init__()
        if depth % 6 != 2:
            raise ValueError(f"depth must be 6n + 2 (20, 32, 44, 56, ...), not {depth}")
        self.conv1 = nn.Conv2d(3, width, 3, stem_stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)

        def stage(inside: int, outside: int, stride: int) -> nn.Sequential:
            first = Block(inside, outside, stride, zero_pad=zero_pad)
            return nn.Sequential(first, *(Block(outside, outside) for _ in range(depth // 6 - 1)))

        self.layer1 = stage(width, width, stride=1)
        self.layer2 = stage(width, 2 * width, stride=2)
        self.layer3 = stage(2 * width, 4 * width, stride=2)
        self.fc = nn.Linear(4 * width, num_classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        logits: Tensor = self.fc(out.mean((2, 3)))
        return logits


def resnet20(num_classes: int = 10, width: int = 16, stem_stride: int = 1) -> CifarResNet:
    """ResNet-20 for CIFAR in He's widths 16-32-64: 0.27 million weights.

    `width` is that of the first stage; `stem_stride=2` halves the side of pictures inside, at a quarter of the cost.
    """
    return CifarResNet(20, width, num_classes, zero_pad=True, stem_stride=stem_stride)


def resnet32_he(num_classes: int = 10) -> CifarResNet:
    """ResNet-32 for CIFAR in He's widths 16-32-64: 0.46 million weights."""
    return CifarResNet(32, 16, num_classes, zero_pad=True)


def resnet56(num_classes: int = 10) -> CifarResNet:
    """ResNet-56 for CIFAR in He's widths 16-32-64: 0.85 million weights."""
    return CifarResNet(56, 16, num_classes, zero_pad=True)


def resnet32(num_classes: int = 10) -> CifarResNet:
    """ResNet-32 for CIFAR as in GraSP and the paper, widths 32-64-128: 1.86 million weights.

    Shortcuts that change the shape are a 1 x 1 convolution with BatchNorm; the classifier starts at N(0, 0.01).
    (Wang, Zhang, Grosse: Picking winning tickets before training by preserving gradient flow, ICLR 2020.)
    """
    model = CifarResNet(32, 32, num_classes, zero_pad=False)
    nn.init.normal_(model.fc.weight, std=0.01)
    nn.init.zeros_(model.fc.bias)
    return model
